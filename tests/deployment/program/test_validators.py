"""Limits and borders of programs, and incomplete files: Python and the engine refuse the same programs and name the same place.

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
from bmx_melius.deployment.program.operations import OPERATIONS, ProgramError
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
    ([MAP], [], 'softmax', {'groups': 8}, {'groups': 3}),
    ([MAP], [], 'transpose', {'height': 4, 'width': 4}, {'height': 4, 'width': 1}),
    ([FLAT], [record('unflatten', [0])], 'transpose', {'height': 1, 'width': 1}, {'height': 1, 'width': 2}),
    ([MAP], [], 'arrange', {'row_length': 8}, {'row_length': 3}),
    ([MAP], [], 'matmul', {'heads': 4, 'positions': 16, 'transposed': 1}, {'heads': 3, 'positions': 16, 'transposed': 1}),
    ([MAP], [], 'matmul', {'heads': 8, 'positions': 16, 'transposed': 1}, {'heads': 8, 'positions': 15, 'transposed': 1}),
    ([(4, 16, 4, 4)], [], 'matmul', {'positions': 16}, {'heads': 2, 'positions': 16}),
    ([MAP], [], 'row_matmul', {'heads': 4, 'positions': 4, 'transposed': 1}, {'heads': 4, 'positions': 16, 'transposed': 1}),
    ([MAP], [], 'row_matmul', {'heads': 2, 'positions': 4, 'transposed': 0}, {'heads': 4, 'positions': 4, 'transposed': 0}),
    ([MAP], [], 'gather', {'positions': 16, 'height': 3}, {'positions': 15, 'height': 3}),
    ([(4, 1 << 12, 1 << 8, 1)], [], 'upsample', {'scale_h': 255, 'repeat': 1}, {'scale_h': 255, 'scale_w': 255, 'repeat': 1}),
]


@pytest.mark.parametrize('case', SHAPES, ids=[f'{number} {case[2]}' for number, case in enumerate(SHAPES)])
def test_both_validators_have_the_same_borders_of_shapes(reference_library, case):
    inputs, before, name, *attributes = case
    place = f'operation {len(before)} ({name})'
    for accepted, given in zip((True, False), attributes):
        read = [len(before)] * OPERATIONS[name].inputs[0]
        words = words_of(inputs, [*before, record(name, read, **given)], [1 + len(before)])
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


@pytest.fixture()
def load_parameters(reference_library, tmp_path):
    """The function content -> what the engine says of a parameter file, from disk and from memory alike; '' if it is read."""

    def result_of(handle):
        reference_library.bmx_program_destroy(handle)
        return '' if handle else reference_library.bmx_last_error().decode()

    def load(octets):
        path = tmp_path / 'network.params'
        path.write_bytes(octets)
        message = result_of(reference_library.bmx_program_load(str(path).encode(), 0))
        in_memory = result_of(reference_library.bmx_program_load_memory(octets, len(octets), 0))
        assert message.partition(f'{path}: ')[::2] == in_memory.partition('content: ')[::2] and '\n' not in message
        return message.replace(f'{path}: ', '')

    return load


def test_incomplete_parameter_files_are_refused_with_the_name_of_the_file(load_parameters, reference_library, tmp_path, long_run):
    words = some_program(1)[1].to_words()
    write_parameters(tmp_path / 'network.params', {'arg:network_program': words, 'arg:other': np.zeros((2, 3), np.float32)})
    content = (tmp_path / 'network.params').read_bytes()
    assert load_parameters(content) == ''
    for path, reason in ((tmp_path / 'missing.params', 'missing.params'), (tmp_path, f'{tmp_path}: cannot read it: it is a folder')):
        assert not reference_library.bmx_program_load(str(path).encode(), 0)
        assert reason in reference_library.bmx_last_error().decode()
    for end in range(0, len(content), 1 if long_run else 37):
        assert load_parameters(content[:end])
    for following in (b'\0', b'\n', content):
        assert load_parameters(content + following)


DENSE, ANY_SHAPE, INT32, INT64 = 0xF993FAC9, 0xF993FACA, 4, 6  # the second: MXNet's arrays that may be empty


def array_octets(shape, code=INT32, data=b'', magic=DENSE):
    header = struct.pack(f'<Iii{len(shape)}q', magic, 0, len(shape), *shape)
    return header + (struct.pack('<iii', 1, 0, code) + data if shape or magic == ANY_SHAPE else b'')


def parameter_octets(*others, arrays=None, names=None, lengths=None):
    """Return the content of a parameter file with a program and other arrays, whose counts and lengths of names may be wrong."""
    words = some_program(1)[1].to_words()
    stored = [array_octets(words.shape, data=words.tobytes()), *others]
    called = [b'arg:net_program', *(b'arg:%d' % number for number in range(len(others)))]
    content = struct.pack('<QQQ', 0x112, 0, len(stored) if arrays is None else arrays) + b''.join(stored)
    content += struct.pack('<Q', len(called) if names is None else names)
    lengths = [len(name) for name in called] if lengths is None else lengths
    return content + b''.join(struct.pack('<Q', length) + name for length, name in zip(lengths, called))


CUT, SHAPE, NAMES = 'the file is cut short or damaged', 'the file is damaged: an impossible shape', 'its arrays have no names'
LARGEST = (2**64 - 1) // 16  # elements, so that the bytes of any type are a number of 64 bits


DAMAGED = {  # content, and how the reason begins; '' if it is read
    'no rows': (parameter_octets(array_octets((0, 3), magic=ANY_SHAPE)), ''),
    'no columns': (parameter_octets(array_octets((3, 0), magic=ANY_SHAPE)), ''),
    'no axes': (parameter_octets(array_octets((), data=bytes(4), magic=ANY_SHAPE), array_octets(())), ''),
    'another type': (parameter_octets(array_octets((2, 3), INT64, bytes(48))), ''),
    'negative size': (parameter_octets(array_octets((-1,))), SHAPE),
    'two negative sizes': (parameter_octets(array_octets((-2, -3))), SHAPE),
    'most elements': (parameter_octets(array_octets((LARGEST,))), CUT),
    'too many elements': (parameter_octets(array_octets((LARGEST + 1,))), SHAPE),
    'most elements in rows': (parameter_octets(array_octets((1 << 29, 1 << 30))), CUT),
    'too many elements in rows': (parameter_octets(array_octets((1 << 30, 1 << 30))), SHAPE),
    'no elements, modulo 2^64': (parameter_octets(array_octets((1 << 32, 1 << 32))), SHAPE),
    'no bytes, modulo 2^64': (parameter_octets(array_octets((1 << 31, 1 << 30), INT64)), SHAPE),
    'too many arrays': (parameter_octets(arrays=1 << 62), CUT),
    'no names': (parameter_octets(names=0), NAMES),
    'as many names as may fit': (parameter_octets(names=2), NAMES),  # their lengths
    'one name more than may fit': (parameter_octets(names=3), CUT),
    'no bytes of lengths, modulo 2^64': (parameter_octets(names=1 << 61), CUT),
    'long name': (parameter_octets(lengths=[1 << 63]), CUT),
    'name one letter longer': (parameter_octets(lengths=[len(b'arg:net_program') + 1]), CUT),
    'name one letter shorter': (parameter_octets(lengths=[len(b'arg:net_program') - 1]), 'the file is damaged: bytes follow its last name'),
}


@pytest.mark.parametrize('case', DAMAGED)
def test_counts_and_shapes_of_parameter_files_are_checked_before_they_are_used(load_parameters, case):
    content, reason = DAMAGED[case]
    assert load_parameters(content)[: len(reason) or None] == reason
