"""Packed networks without MXNet: what a session computes, with any inputs, precision and threads."""

import concurrent.futures
import copy
import hashlib
import pickle

import numpy as np
import pytest
from support.engines import needs_engine
from support.packed import chain, conv, make_image, make_program, operation, window, write_packed
from support.packed_networks import assert_same

import bmx_melius as bmx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Value
from bmx_melius.deployment.program.program import Program

pytest_plugins = ['support.packed_networks']  # its fixtures


def test_session_computes_what_the_reference_does_at_any_batch_and_size(prefix):
    session = bmx.Session(prefix)
    assert session.input_names == ['data0'] and session.input_shapes == [(None, 5, 8, 6)]
    for x in (make_image(), make_image(1), make_image(7, height=3, width=11)):
        assert_same(session(x), reference.run(make_program(), [x]))


@pytest.mark.parametrize('make', [str, bytes, lambda prefix: f'{prefix}-symbol.json', lambda prefix: make_program()])
def test_session_takes_a_prefix_a_symbol_file_or_a_program(prefix, make):
    assert_same(bmx.Session(make(prefix))(make_image()), reference.run(make_program(), [make_image()]))


@pytest.mark.parametrize('outputs', [[0], [1], [1, 0], [0, 0, 1]])
def test_outputs_are_those_of_the_symbol_and_a_single_one_is_not_in_a_list(tmp_path, outputs):
    write_packed(tmp_path / 'net', make_program(), outputs)
    result = bmx.Session(tmp_path / 'net')(make_image())
    expected = reference.run(make_program(), [make_image()])
    assert isinstance(result, list) == (len(outputs) > 1)
    assert_same(result if len(outputs) > 1 else [result], [expected[output] for output in outputs])


def test_several_inputs_are_given_in_order(tmp_path):
    value = Value(REAL_KIND, 3, 4, 4, False)
    write_packed(tmp_path / 'net', Program([value, value, Value(REAL_KIND, 2, 1, 1, True)], [operation('add', 0, 1)], [3, 2]))
    a, b = np.random.randn(2, 5, 3, 7, 1).astype(np.float32)
    c = np.random.randn(5, 2).astype(np.float32)
    assert_same(bmx.Session(tmp_path / 'net')(a, b, c), [a + b, c])


def test_arrays_that_are_not_contiguous_and_lists_of_floats_are_taken(prefix):
    x = make_image()
    assert_same(bmx.Session(prefix)(np.asfortranarray(x)), bmx.Session(prefix)(x))
    assert_same(bmx.Session(prefix)(x[:, :, ::-1]), bmx.Session(prefix)(x[:, :, ::-1].copy()))


@needs_engine
def test_the_fingerprint_is_the_hash_of_the_outputs_for_the_documented_input(prefix):
    session = bmx.Session(prefix)
    x = (np.random.RandomState(0).randint(-(2**23), 2**23, (1, 5, 8, 6)) / 2**22).astype(np.float32)
    expected = hashlib.sha256(b''.join(array.tobytes() for array in session(x))).hexdigest()
    assert session.fingerprint() == expected == bmx.Session(prefix, threads=3).fingerprint()


@needs_engine
def test_the_inputs_of_a_fingerprint_are_generated_in_order(tmp_path):
    value = Value(REAL_KIND, 3, 4, 4, False)
    write_packed(tmp_path / 'net', Program([value, value], [operation('add', 0, 1)], [2]))
    random = np.random.RandomState(0)
    a, b = ((random.randint(-(2**23), 2**23, (1, 3, 4, 4)) / 2**22).astype(np.float32) for _ in range(2))
    assert bmx.Session(tmp_path / 'net').fingerprint() == hashlib.sha256((a + b).tobytes()).hexdigest()


@needs_engine
def test_sessions_are_opened_and_closed_in_several_threads(prefix):
    expected = bmx.Session(prefix)(make_image())[0].tobytes()

    def open_and_run(_):
        return bmx.Session(prefix, threads=1)(make_image())[0].tobytes() == expected

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(open_and_run, range(800)))


def test_a_precision_is_exact_fast_or_bf16(prefix):
    for precision in 'exact', 'fast', 'bf16':  # the dense layer has few rows, for which all of them use float32
        assert_same(bmx.Session(prefix, precision=precision)(make_image()), reference.run(make_program(), [make_image()]))
    with pytest.raises(bmx.UserError, match="precision must be 'exact', 'fast' or 'bf16', not 'half'"):
        bmx.Session(prefix, precision='half')


@pytest.mark.parametrize('kernel, groups', [(3, 4), (1, 1)], ids=['stem', 'pixels'])
def test_bf16_rounds_inputs_and_weights_to_8_bits_and_adds_in_float32(kernel, groups):
    random = np.random.RandomState(0)
    channels, filters = 32, 64
    shape = (filters, channels // groups, kernel, kernel)
    pooling = [operation('max_pool')] if kernel == 1 else []  # convolutions of the input are the stem's

    def run(weight, x, precision):
        program = chain((channels, 20, 70), *pooling, conv(weight, groups=groups, **window(kernel, pad=kernel // 2)))
        return np.asarray(bmx.Session(program, precision=precision)(x))

    integers = random.randint(-8, 9, shape).astype('f'), random.randint(-255, 256, (2, channels, 20, 70)).astype('f')
    assert run(*integers, 'bf16').tobytes() == run(*integers, 'exact').tobytes()

    numbers = random.randn(*shape).astype('f'), random.randn(2, channels, 20, 70).astype('f')
    for number in numbers:  # halfway between two numbers of 8 bits, which are rounded to even, and numbers of 8 bits
        number.flat[::5] = (number.flat[::5].view('u4') & 0xFFFF0000 | 0x8000).view('f')
        number.flat[1::5] = bfloat16(number.flat[1::5])
    found, exact = run(*numbers, 'bf16'), run(*numbers, 'exact')
    expected = run(*map(bfloat16, numbers), 'exact')
    tolerance = 1e-5 * run(*map(np.abs, numbers), 'exact')
    without_bf16 = found.tobytes() == exact.tobytes()  # a processor without AVX512_BF16
    assert without_bf16 or (np.abs(found - expected) <= tolerance).all()
    assert (np.abs(expected - exact) > tolerance).mean() > 0.9


def bfloat16(numbers):
    """Return float32 numbers rounded to the nearest numbers of 8 bits, halfway to the even one."""
    bits = np.ascontiguousarray(numbers).view('u4').astype('u8')
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype('u4').view('f')


@pytest.mark.parametrize('threads', [1, 2, 7, np.int64(2)])
def test_threads_of_a_run_can_be_chosen(prefix, threads):
    assert_same(bmx.Session(prefix, threads=threads)(make_image()), bmx.Session(prefix)(make_image()))


def test_threads_that_share_a_session_get_separate_results(prefix):
    session, images = bmx.Session(prefix), [make_image(seed=seed) for seed in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda image: [session(image) for _ in range(20)], images))
    for image, outputs in zip(images, results):
        expected = session(image)
        assert all(np.array_equal(one, wanted) for output in outputs for one, wanted in zip(output, expected))


@pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy, lambda session: pickle.loads(pickle.dumps(session))])
def test_a_session_can_be_copied_and_pickled(prefix, copied, monkeypatch, tmp_path):
    monkeypatch.chdir(prefix.parent)
    session = bmx.Session(prefix.name, threads=3, check_finite=True, precision='fast')
    monkeypatch.chdir(tmp_path.parent)  # the path of the files does not depend on the folder
    other = copied(session)
    assert_same(other(make_image()), session(make_image()))
    assert repr(other) == repr(session)
    with pytest.raises(bmx.UserError, match='not finite'):
        other(np.full_like(make_image(), np.nan))
    assert_same(copied(bmx.Session(make_program()))(make_image()), session(make_image()))
