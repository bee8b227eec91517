"""Arrays in requests and responses of the service, without any package of bmx-melius[serve]: what is read, written and refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmx_melius.serving import tensors
from bmx_melius.serving.limits import Refusal

NUMBERS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=12).filter(
    lambda row: len(row) % 2 == 0
)


def entry(name='a', shape=(1, 2), data=(1, 2), datatype='FP32', **parameters):
    described = {'name': name, 'shape': list(shape), 'datatype': datatype}
    return {**described, **({} if data is None else {'data': data}), **({'parameters': parameters} if parameters else {})}


def parse(content, binary=b'', names=('a',), outputs=('x', 'y')):
    text = json.dumps(content).encode()
    return tensors.parse_request(text + binary, str(len(text)) if binary else None, list(names), list(outputs))


@given(NUMBERS, NUMBERS)
def test_numbers_survive_the_json_and_the_binary_form_bit_for_bit(left, right):
    a, b = (np.array(numbers, np.float32).reshape(2, -1) for numbers in (left, right))
    flat = {'id': '7', 'inputs': [entry('b', b.shape, b.ravel().tolist()), entry('a', a.shape, a.tolist())]}
    size = {'binary_data_size': a.nbytes}
    mixed = {'inputs': [entry('a', a.shape, None, **size), entry('b', b.shape, None, binary_data_size=b.nbytes)]}
    for request in (parse(flat, names='ab'), parse(mixed, a.astype('<f4').tobytes() + b.astype('<f4').tobytes(), names='ab')):
        for found, expected in zip(request.arrays, (a, b)):
            assert found.dtype == np.float32 and found.tobytes() == expected.tobytes() and found.shape == expected.shape
        assert request.outputs == [(0, False), (1, False)]
    body, length = tensors.write_response('net', parse(flat, names='ab'), ['x', 'y'], [a, b])
    answer = json.loads(body)
    assert length is None and (answer['model_name'], answer['id']) == ('net', '7')
    for output, expected in zip(answer['outputs'], (a, b)):
        assert np.array(output['data'], np.float32).reshape(output['shape']).tobytes() == expected.tobytes()
    wanted = {**flat, 'outputs': [{'name': 'y', 'parameters': {'binary_data': True}}, {'name': 'x'}]}
    body, length = tensors.write_response('net', parse(wanted, names='ab'), ['x', 'y'], [a, b])
    second, first = json.loads(body[:length])['outputs']
    assert second == {'name': 'y', 'shape': list(b.shape), 'datatype': 'FP32', 'parameters': {'binary_data_size': b.nbytes}}
    assert body[length:] == b.astype('<f4').tobytes() and first['data'] == a.ravel().tolist()
    everything = {**flat, 'parameters': {'binary_data_output': True}}
    body, length = tensors.write_response('net', parse(everything, names='ab'), ['x', 'y'], [a, b])
    assert body[length:] == a.astype('<f4').tobytes() + b.astype('<f4').tobytes()


@pytest.mark.parametrize(
    'content,message',
    [
        ([], 'must be a JSON object'),
        ({}, 'inputs must be a list of objects'),
        ({'inputs': [1]}, 'inputs must be a list of objects'),
        ({'inputs': []}, 'the inputs must be a, not none'),
        ({'inputs': [entry('b')]}, "the inputs must be a, not 'b'"),
        ({'inputs': [entry('\ud800\n')]}, r"the inputs must be a, not '\ud800\n'"),
        ({'inputs': [entry(3)]}, 'the inputs must be a, not 3'),
        ({'inputs': [entry('a'), entry('a')]}, "the inputs must be a, not 'a', 'a'"),
        ({'inputs': [entry(datatype='FP64')]}, "must be FP32, not 'FP64'"),
        ({'inputs': [entry(datatype='x' * 10_000)]}, "must be FP32, not 'xxx"),
        ({'inputs': [entry(shape=[])]}, 'a list of positive whole numbers'),
        ({'inputs': [entry(shape=[0, 2])]}, 'a list of positive whole numbers'),
        ({'inputs': [entry(shape=[True, 2])]}, 'a list of positive whole numbers'),
        ({'inputs': [entry(shape=[1] * 9)]}, 'a list of positive whole numbers'),
        ({'inputs': [entry(shape=[2**40, 2**40])]}, 'has 2 numbers, but its shape is'),
        ({'inputs': [entry(data=None)]}, 'must have data'),
        ({'inputs': [entry(data={})]}, 'must have data'),
        ({'inputs': [entry(data=[1, [2]])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=[1, 'x'])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=[1, 2, 3])]}, 'has 3 numbers, but its shape is [1, 2]'),
        ({'inputs': [entry(data=[1, float('nan')])]}, 'not finite'),
        ({'inputs': [entry(data=[1, 1e39])]}, 'not finite'),
        ({'inputs': [entry(data=[1, None])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=[1, '1.5'])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=['1', '1.5'])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=[1, True])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=[[1], [{}]])]}, 'not an array of numbers'),
        ({'inputs': [entry(shape=[1, 3], data=[[1, 2], [3]])]}, 'not an array of numbers'),
        ({'inputs': [entry(data=[1, 10**400])]}, 'not finite'),
        ({'inputs': [{**entry(), 'parameters': 3}]}, 'parameters must be an object'),
        ({'inputs': [entry(data=None, binary_data_size=7)]}, 'a multiple of 4'),
        ({'inputs': [entry(data=None, binary_data_size=8)]}, 'incomplete: 8 bytes'),
        ({'inputs': [entry()], 'id': 3}, 'id must be text'),
        ({'inputs': [entry()], 'outputs': [{'name': 'z'}]}, "no output 'z', only x, y"),
        ({'inputs': [entry()], 'outputs': 3}, 'outputs must be a list'),
        ({'inputs': [entry()], 'outputs': [{'name': 'x'}, {'name': 'y'}, {'name': 'x'}]}, 'the output x is requested 2 times'),
        ({'inputs': [entry()], 'outputs': [{'name': 'y'}] * 20_000}, 'the output y is requested 20000 times'),
        ({'inputs': [entry()], 'parameters': {'binary_data_output': 1}}, 'must be true or false'),
    ],
)
def test_requests_that_do_not_fit_are_refused_with_one_line(content, message):
    with pytest.raises(Refusal) as caught:
        parse(content)
    assert caught.value.status == 400 and message in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize('body', [b'', b'{', b'[' * 100_000, b'\xff\xfe{}', b'{"inputs": NaNN}'])
def test_a_body_that_is_not_json_is_refused(body):
    with pytest.raises(Refusal, match='not JSON'):
        tensors.parse_request(body, None, ['a'], ['x'])


@pytest.mark.parametrize('length', ['', '-1', 'x', '3', '9' * 30])
def test_a_wrong_length_of_the_json_part_is_refused(length):
    with pytest.raises(Refusal, match='must be the length of the JSON part'):
        tensors.parse_request(b'{}', length, ['a'], ['x'])


def test_bytes_that_belong_to_no_input_are_refused():
    with pytest.raises(Refusal, match='3 bytes follow the binary data'):
        parse({'inputs': [entry()]}, b'abc')


def test_outputs_that_json_cannot_express_are_refused_and_returned_in_binary_form():
    outputs = [np.array([[np.inf, 1]], np.float32)]
    with pytest.raises(Refusal, match='x has values that are not finite') as caught:
        tensors.write_response('net', parse({'inputs': [entry()]}, outputs=['x']), ['x'], outputs)
    assert caught.value.status == 422
    request = parse({'inputs': [entry()], 'parameters': {'binary_data_output': True}}, outputs=['x'])
    body, length = tensors.write_response('net', request, ['x'], outputs)
    assert body[length:] == outputs[0].tobytes()
