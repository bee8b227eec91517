"""Symbols as JSON: what is read and refused, and that edited symbols compute what they should."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from bmx_melius import UserError
from bmx_melius.files import symbol_json
from bmx_melius.files.symbol_json import VARIABLE, SymbolJson, integers, truth
from bmx_melius.graph.tracing import load_symbol
from bmx_melius.training.teacher import TeacherOptions, load_teacher


def symbol():
    """(data + 1) * weight, and both halves of data as further outputs."""
    data = mx.sym.var('data')
    halves = mx.sym.split(data, num_outputs=2, axis=1, name='halves')
    return mx.sym.Group([(data + 1) * mx.sym.var('weight'), halves[1], halves[0]])


def run(text, **arrays):
    loaded = mx.sym.load_json(text)
    return [output.asnumpy() for output in loaded.eval(**{name: nd.array(array) for name, array in arrays.items()})]


def assert_same_results(one, other, **arrays):
    for y, wanted in zip(run(one, **arrays), run(other, **arrays)):
        np.testing.assert_array_equal(y, wanted)


DATA, WEIGHT = np.arange(8.0).reshape(2, 4), np.arange(8.0).reshape(2, 4) - 3


def test_a_symbol_is_written_as_it_was_read():
    read = symbol()
    written = SymbolJson.of(read).text()
    assert_same_results(written, read.tojson(), data=DATA, weight=WEIGHT)
    assert SymbolJson.parse(written, 'a').text() == written
    assert mx.sym.load_json(written).attr_dict() == read.attr_dict()


def test_nodes_in_any_order_are_put_in_that_in_which_they_are_computed():
    text = symbol().tojson()
    content = json.loads(text)
    last = len(content['nodes']) - 1
    content['nodes'].reverse()
    for entries in (*(node['inputs'] for node in content['nodes']), content['heads']):
        for entry in entries:
            entry[0] = last - entry[0]
    read = SymbolJson.parse(json.dumps(content), 'a')
    assert all(source < index for index, node in enumerate(read.nodes) for source, *_ in node['inputs'])
    assert_same_results(read.text(), text, data=DATA, weight=WEIGHT)


def test_nodes_are_added_replaced_and_dropped():
    edited = SymbolJson.of(symbol())
    product, *halves = edited.heads
    sine = edited.add('sin', 'sine', [product])
    edited.heads = [[sine, 0, 0], halves[0]]
    weight = next(index for index, node in enumerate(edited.nodes) if node['name'] == 'weight')
    edited.replace(weight, '_mul_scalar', [[0, 0, 0]], {'scalar': '2'})
    results = run(edited.text(), data=DATA)
    np.testing.assert_allclose(results[0], np.sin((DATA + 1) * DATA * 2), rtol=1e-5)
    np.testing.assert_array_equal(results[1], DATA[:, 2:])
    edited.heads = edited.heads[1:]
    edited.drop_unused()
    assert [node['name'] for node in edited.nodes] == ['data', 'halves']
    np.testing.assert_array_equal(run(edited.text(), data=DATA)[0], DATA[:, 2:])
    edited.replace(1, VARIABLE, name='half')
    edited.heads = [[1, 0, 0]]
    assert mx.sym.load_json(edited.text()).list_arguments() == ['half']


def test_a_symbol_is_spliced_into_another_one():
    first, second = SymbolJson.of(symbol()), SymbolJson.of(mx.sym.var('x') * 3 + mx.sym.var('bias'))
    first.heads = first.splice(second, {'x': first.heads[1]})
    (result,) = run(first.text(), data=DATA, bias=np.ones((2, 2)))
    np.testing.assert_array_equal(result, DATA[:, 2:] * 3 + 1)


def test_inputs_that_are_further_outputs_of_a_node_are_spliced():
    outer, inner = SymbolJson.of(symbol()), SymbolJson.of(symbol())
    inner.heads = inner.heads[1:]
    outer.heads = outer.splice(inner, {'data': outer.heads[2]})
    results = run(outer.text(), data=DATA, weight=WEIGHT)
    np.testing.assert_array_equal(np.concatenate(results, axis=1), DATA[:, [1, 0]])


def damaged(change):
    content = json.loads(symbol().tojson())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    'text, words',
    [
        ('', 'holds no symbol'),
        ('[1]', 'holds no symbol'),
        ('[' * 100000, 'holds no symbol'),
        (damaged(lambda content: content.pop('nodes')), "KeyError('nodes')"),
        (damaged(lambda content: content.update(nodes=[1])), 'holds no symbol'),
        (damaged(lambda content: content['nodes'][0].update(name=3)), 'name 3 is not a string'),
        (damaged(lambda content: content['nodes'][0].update(name='a\x1b[2J')), "the name 'a\\x1b[2J' has control characters"),
        (damaged(lambda content: content['nodes'][0].update(name='a\ud800')), "the name 'a\\ud800' has control characters"),
        (damaged(lambda content: content['nodes'][1].update(op='a\nb')), 'has control characters'),
        (damaged(lambda content: content['nodes'][0].update(attrs={'a': 1})), 'an attribute that is not a string'),
        (damaged(lambda content: content['nodes'][0].update(attrs=None)), 'holds no symbol'),
        (damaged(lambda content: content['nodes'][1]['inputs'][0].__setitem__(0, 0.0)), 'reads a node that does not exist'),
        (damaged(lambda content: content['nodes'][1]['inputs'][0].__setitem__(0, 99)), 'reads a node that does not exist'),
        (damaged(lambda content: content['nodes'][1]['inputs'][0].__setitem__(1, 1 << 30)), 'reads a node that does not exist'),
        (damaged(lambda content: content['nodes'][1]['inputs'][0].__setitem__(0, -1)), 'reads a node that does not exist'),
        (damaged(lambda content: content.update(heads=[[99, 0, 0]])), 'an output is not a node'),
        (damaged(lambda content: content.update(heads=[])), 'an output is not a node'),
        (damaged(lambda content: content['nodes'][1]['inputs'][0].__setitem__(0, 1)), 'reads its own result'),
        (damaged(lambda content: content['nodes'][2].update(name='data')), '2 variables of the symbol are called data'),
    ],
)
def test_texts_that_are_no_symbol_are_refused(text, words):
    with pytest.raises(UserError) as caught:
        SymbolJson.parse(text, 'net-symbol.json')
    assert str(caught.value).startswith('net-symbol.json') and words in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize('operator', ['_Native', '_NDArray', '_backward__Native', '_CustomFunction', '_CachedOp'])
def test_operators_that_would_execute_what_a_file_points_to_are_refused(operator, tmp_path):
    (tmp_path / 'net-symbol.json').write_text(damaged(lambda content: content['nodes'][1].update(op=operator)))
    with pytest.raises(UserError, match=f'net-symbol.json is refused: MXNet executes what the attributes of {operator}'):
        load_symbol(tmp_path / 'net-symbol.json')


def test_graphs_within_nodes_are_refused_whose_operators_and_outputs_mxnet_does_not_check(tmp_path):
    x = mx.sym.var('data')
    looped, _ = mx.sym.contrib.foreach(lambda row, state: (row + state, row), x, mx.sym.var('state'))
    (tmp_path / 'net-symbol.json').write_text(looped.tojson())
    with pytest.raises(UserError, match=r'net-symbol.json: node \S+ \(_foreach\) contains a subgraph'):
        load_symbol(tmp_path / 'net-symbol.json')


@pytest.mark.parametrize('slot', [2, 5, 4000])
@pytest.mark.parametrize('where', ['input', 'output'])
def test_outputs_that_a_node_does_not_have_are_refused(where, slot, tmp_path):
    content = json.loads(symbol().tojson())
    halves = next(index for index, node in enumerate(content['nodes']) if node['name'] == 'halves')
    if where == 'output':
        content['heads'][1] = [halves, slot, 0]
    else:
        content['nodes'].append({'op': 'relu', 'name': 'last', 'inputs': [[halves, slot, 0]]})
        content['heads'].append([len(content['nodes']) - 1, 0, 0])
    (tmp_path / 'net-symbol.json').write_text(json.dumps(content))
    with pytest.raises(UserError, match=f'net-symbol.json is damaged: it uses output {slot} of node halves, which does not exist'):
        load_symbol(tmp_path / 'net-symbol.json')


@pytest.mark.parametrize('operator', ['_lesser_equal_scalar', 'Embedding', 'Concat', 'BatchNorm'])
def test_nodes_without_the_inputs_of_their_operator_are_refused(operator, tmp_path):
    damaged = SymbolJson.of(symbol())
    damaged.replace(next(index for index, node in enumerate(damaged.nodes) if node['name'] == 'halves'), operator)
    damaged.heads = [damaged.heads[1]]
    (tmp_path / 'net-symbol.json').write_text(damaged.text())
    with pytest.raises(UserError, match=rf'net-symbol.json is damaged: node halves \({operator}\) has no input'):
        load_symbol(tmp_path / 'net-symbol.json')


def test_nodes_of_operators_without_inputs_are_loaded(tmp_path):
    (tmp_path / 'net-symbol.json').write_text(mx.sym.broadcast_add(mx.sym.zeros((2, 3)), mx.sym.arange(3)).tojson())
    assert load_symbol(tmp_path / 'net-symbol.json').infer_shape()[1] == [(2, 3)]


@pytest.mark.parametrize('text', ['é' * 300, 'x' + 'é' * 300])
def test_a_symbol_that_mxnet_cannot_load_is_an_error_of_one_line_even_if_its_message_ends_within_a_character(text, tmp_path):
    content = json.loads((mx.sym.var('data') * 2).tojson())
    (tmp_path / 'symbol.json').write_text(json.dumps({**content, 'node_row_ptr': text}, ensure_ascii=False), encoding='utf-8')
    with pytest.raises(UserError, match='holds a symbol that MXNet cannot load: ') as error:
        load_symbol(tmp_path / 'symbol.json')
    assert len(str(error.value).splitlines()) == 1


def test_a_symbol_that_is_too_large_is_refused_before_it_is_parsed(monkeypatch):
    text = symbol().tojson()
    monkeypatch.setattr(symbol_json, 'MAX_BYTES', len(text))
    SymbolJson.parse(text, 'net-symbol.json')
    with pytest.raises(UserError, match=f'net-symbol.json has {len(text) + 1} bytes; at most {len(text)} are possible'):
        SymbolJson.parse(text + ' ', 'net-symbol.json')


def test_a_teacher_with_an_operator_that_would_execute_what_a_file_points_to_is_refused(tmp_path):
    (tmp_path / 'net-symbol.json').write_text(damaged(lambda content: content['nodes'][1].update(op='_Native', attrs={'info': '0x1000'})))
    with pytest.raises(UserError, match='net-symbol.json is refused: MXNet executes'):
        load_teacher(None, TeacherOptions(str(tmp_path / 'net')), 2, (3, 8, 8), [mx.cpu()])


@pytest.mark.parametrize(
    'text, numbers',
    [
        ('(3, 2)', (3, 2)),
        ('[3,2]', (3, 2)),
        ('(3,)', (3,)),
        ('3', (3,)),
        ('()', ()),
        ('', ()),
        ('(None, -1)', (None, -1)),
    ],
)
def test_integers_are_read_in_every_form_in_which_mxnet_writes_them(text, numbers):
    assert integers(text) == numbers


@pytest.mark.parametrize('text', ['(a, 2)', '1.5', '(1 2)', 'True'])
def test_text_that_is_not_integers_is_refused(text):
    with pytest.raises(ValueError):
        integers(text)


def test_truth_values_have_two_spellings_each():
    assert [truth(text) for text in ('True', '1', 'true', 'False', '0', 'false')] == [True] * 3 + [False] * 3
    with pytest.raises(ValueError, match="'None' is not a truth value"):
        truth('None')


def test_a_symbol_of_a_later_version_that_mxnet_reads_without_its_variables_is_refused(tmp_path):
    nodes = [{'op': 'null', 'name': 'x', 'inputs': []}, {'op': 'relu', 'name': 'y', 'inputs': [[0, 0, 0]]}]
    graph = {'nodes': nodes, 'arg_nodes': [0], 'heads': [[1, 0, 0]], 'attrs': {'mxnet_version': ['int', 2**31 - 1]}}
    (tmp_path / 'net-symbol.json').write_text(json.dumps(graph))
    with pytest.raises(UserError, match='net-symbol.json holds a symbol that MXNet cannot load: '):
        load_symbol(tmp_path / 'net-symbol.json')
