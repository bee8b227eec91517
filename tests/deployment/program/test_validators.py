"""Limits and borders of programs, and incomplete files: Python and the engine refuse the same ones and name the same place.

The fuzzers (tests/fuzz) compare the two on damaged programs and files.
"""

import re
import struct

import numpy as np
import pytest
from support.engines import Engine, create, needs_engine
from support.large_programs import chain as relus
from support.large_programs import concatenations, record, words_of
from support.packed import chain, operation, sign
from support.random_programs import some_program
from support.refusals import place_of

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.limits import MAX_OPERATIONS
from bmx_melius.deployment.program.operations import ProgramError
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import checksum_of
from bmx_melius.files.parameters import write_parameters

pytest_plugins = ['support.engines']  # its fixtures
pytestmark = needs_engine


def refusal(words):
    """What Python says of the words of a program; an empty string if they are valid."""
    try:
        Program.from_words(words)
    except ProgramError as error:
        return str(error)
    return ''


def binary_dense(channels, count, out_channels=1, groups=1):
    """So many binary dense layers on the comparison of one input."""
    layer = record('binary_conv', [1], out_channels * -(-channels // groups // 32), out_channels=out_channels, groups=groups)
    return words_of([(2, channels, 1, 1)], [record('threshold', [0], channels + -(-channels // 32)), *[layer] * count], [2])


# A program just beyond each limit, and the place of the refusal with the number that is there.
BEYOND = {
    'inputs': (lambda: words_of([(2, 1, 1, 1)] * 4097, [record('relu', [0])], [0]), 'word 4, inputs: .*4097'),
    'operations': (lambda: relus(65537), 'word 5, operations: .*65537'),
    'outputs': (lambda: words_of([(2, 1, 1, 1)], [record('relu', [0])], [1] * 4097), 'word 6, outputs: .*4097'),
    'operands': (
        lambda: words_of([(2, 1, 1, 1)], [record('concat', [0] * 4097)], [1]),
        'word 14, operation 0 .concat., inputs: .*4097',
    ),
    'all operands': (
        lambda: concatenations(4, 64, 4096),
        'operation 68 .concat., all inputs: 262152',
    ),
    'all groups': (
        lambda: binary_dense(1 << 17, 3, out_channels=1 << 17, groups=1 << 17),
        'operation 3 .binary_conv., all groups: 393216',
    ),
    'all weights': (
        lambda: binary_dense(1 << 20, 17),
        'operation 17 .binary_conv., all weights: 1140850688',
    ),
    'window': (
        lambda: words_of(
            [(4, 1 << 20, 1, 1)],
            [record('conv', [0], 1, kernel_h=64, kernel_w=32, pad_top=32, pad_left=16, pad_bottom=32, pad_right=16)],
            [1],
        ),
        'operation 0 .conv.: ',
    ),
    'no more than all weights': (  # the array is looked for
        lambda: words_of(
            [(4, 1 << 18, 1, 1)], [record('conv', [0], 1, kernel_h=16, kernel_w=4, pad_top=8, pad_left=2, pad_bottom=8, pad_right=2)], [1]
        ),
        'word 31, operation 0 .conv., weight: 16777216 ',
    ),
}


@pytest.mark.parametrize('limit', BEYOND)
def test_both_validators_know_the_same_limits(reference_library, limit):
    words, message = BEYOND[limit][0](), BEYOND[limit][1]
    assert re.match(message, refusal(words))
    assert not create(reference_library, words)
    assert re.match(message, reference_library.bmx_last_error().decode())


WINDOW = {'kernel_h': 2, 'kernel_w': 2, 'pad_bottom': 1, 'pad_right': 1, 'stride_h': 3, 'stride_w': 3}
MAP, FLAT, BITS = (4, 8, 4, 4), (2, 8, 1, 1), [record('threshold', [0], 9)]
SHAPES = [  # at each border of a shape rule: inputs, operations before, operation, attributes that it accepts, and others
    ([MAP], [], 'conv', {'groups': 4, 'out_channels': 4}, {'groups': 4, 'out_channels': 6}),
    ([MAP], [], 'conv', {'groups': 8, 'out_channels': 8}, {'groups': 16, 'out_channels': 16}),
    ([MAP], [], 'conv', {'kernel_h': 4}, {'kernel_h': 5}),
    ([MAP], [], 'conv', {'kernel_w': 3, 'dilation_w': 2, 'pad_left': 1}, {'kernel_w': 3, 'dilation_w': 2}),
    ([FLAT], [], 'conv', {}, {'stride_h': 2}),
    ([FLAT], [], 'conv', {}, {'kernel_w': 3, 'pad_left': 1, 'pad_right': 1}),
    ([MAP], BITS, 'binary_conv', {'planes': 4, 'out_channels': 3}, {'planes': 3, 'out_channels': 3}),
    ([MAP], BITS, 'binary_conv', {'planes': 2, 'groups': 4, 'out_channels': 4}, {'planes': 4, 'groups': 4, 'out_channels': 4}),
    ([MAP], [], 'max_pool', {**WINDOW, 'ceil': 1}, {**WINDOW, 'ceil': 1, 'kernel_w': 3, 'stride_w': 4, 'pad_right': 2}),
    ([(4, 8, 3, 4)], [], 'avg_pool', {**WINDOW, 'ceil': 0}, {**WINDOW, 'ceil': 1}),
    ([(4, 8, 4, 3)], [], 'avg_pool', {**WINDOW, 'ceil': 0}, {**WINDOW, 'ceil': 1}),
    ([MAP], [], 'max_pool', {**WINDOW, 'pad_top': 1}, {**WINDOW, 'pad_top': 2}),
    ([MAP], [], 'max_pool', {**WINDOW, 'pad_right': 1}, {**WINDOW, 'pad_right': 2}),
    ([MAP], [], 'slice', {'begin': 7, 'end': 8}, {'begin': 7, 'end': 7}),
    ([MAP], [], 'slice', {'begin': 0, 'end': 8}, {'begin': 0, 'end': 9}),
    ([MAP], [], 'shuffle', {'groups': 8}, {'groups': 3}),
    ([MAP], [], 'normalize', {'groups': 2}, {'groups': 16}),
    ([MAP], [], 'scale_map', {'height': 4, 'width': 1}, {'height': 2, 'width': 1}),
    ([MAP], [], 'shift_map', {'height': 1, 'width': 4}, {'height': 1, 'width': 5}),
    ([(4, 1 << 12, 1 << 8, 1)], [], 'upsample', {'scale_h': 255, 'repeat': 1}, {'scale_h': 255, 'scale_w': 255, 'repeat': 1}),
]


@pytest.mark.parametrize('case', SHAPES, ids=[f'{number} {case[2]}' for number, case in enumerate(SHAPES)])
def test_both_validators_have_the_same_borders_of_shapes(reference_library, case):
    inputs, before, name, *attributes = case
    place = f'operation {len(before)} ({name})'
    for accepted, given in zip((True, False), attributes):
        words = words_of(inputs, [*before, record(name, [len(before)], **given)], [1 + len(before)])
        found = '' if create(reference_library, words) else reference_library.bmx_last_error().decode()
        assert place_of(found) == place_of(refusal(words))
        assert (place_of(found) != place) == accepted  # without their arrays the words of others are refused at another place


@pytest.mark.parametrize('array', ['threshold', 'low', 'high'])
def test_both_validators_refuse_bounds_that_are_no_numbers(reference_library, array):
    compare = sign(3) if array == 'threshold' else operation('clip', arrays={'low': np.zeros(3, 'f'), 'high': np.ones(3, 'f')})
    words = chain((3, 2, 2), compare, outputs=[0]).to_words()
    words[-1 - {'threshold': 5, 'low': 7, 'high': 3}[array]] = np.float32(np.nan).view(np.int32)  # before the number of the output
    words[3] = checksum_of(words[4:])
    assert not create(reference_library, words)
    for message in (refusal(words), reference_library.bmx_last_error().decode()):
        assert place_of(message) == f'operation 0 ({compare.name}), {array}' and 'NaN' in message


def test_a_program_of_as_many_operations_as_are_possible_is_read_planned_and_run(reference_library):
    words, library = relus(MAX_OPERATIONS), reference_library
    program = Program.from_words(words)
    handle = create(library, words)
    assert handle, library.bmx_last_error()
    x = np.random.randn(1, 1, 2, 2).astype(np.float32)
    (y,) = Engine(library, handle, program).run([x])
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(reference.run(program, [x])[0], y)


def test_incomplete_parameter_files_are_refused_with_the_name_of_the_file(reference_library, tmp_path, long_run):
    library = reference_library
    path = tmp_path / 'network.params'
    words = some_program(1)[1].to_words()
    write_parameters(path, {'arg:network_program': words, 'arg:other': np.zeros((2, 3), np.float32)})
    content = path.read_bytes()

    def result_of(handle):
        library.bmx_program_destroy(handle)
        return '' if handle else library.bmx_last_error().decode()

    def load(octets):
        path.write_bytes(octets)
        message = result_of(library.bmx_program_load(str(path).encode(), 0))
        in_memory = result_of(library.bmx_program_load_memory(octets, len(octets), 0))
        assert message.partition(f'{path}: ')[::2] == in_memory.partition('content: ')[::2] and '\n' not in message
        return not message

    assert load(content)
    assert not library.bmx_program_load(str(tmp_path / 'missing.params').encode(), 0)
    assert 'missing.params' in library.bmx_last_error().decode()
    assert not library.bmx_program_load(str(tmp_path).encode(), 0)
    assert f'{tmp_path}: cannot read it: it is a folder' == library.bmx_last_error().decode()
    for end in range(0, len(content), 1 if long_run else 37):
        assert not load(content[:end])
    for following in (b'\0', b'\n', content):
        assert not load(content + following)
        assert 'bytes follow its last name' in library.bmx_last_error().decode()
    sizes = struct.pack('<QQQ', 0x112, 0, 1 << 60)
    assert not load(sizes) and not load(sizes + content[24:])
