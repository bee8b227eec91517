"""Models for several images: imported as for one, with the same result and at its cost, unless images depend on each other."""

import numpy as np
import onnx
import pytest
from support.tiny_onnx import make, node, signs

from bmx_melius.deployment.onnx.batches import evaluator_of_one_image
from bmx_melius.deployment.onnx.conversion import import_onnx
from bmx_melius.deployment.onnx.model import read_model

pytestmark = pytest.mark.usefixtures('without_trial')


def network(batch, *more, constants=None, end='y'):
    """Return a binary network whose `Reshape` and `Expand` have the batch in their sizes; `more` are nodes after its output `r`."""
    random = np.random.RandomState(0)
    arrays = {
        'first': random.normal(size=(8, 4, 3, 3)).astype(np.float32),
        'weight': signs(8, 8, 3, 3),
        'sizes': np.array([batch, 8]),
        'repeats': np.array([batch, 8, 4, 4]),
        **{name: np.float32(value) for name, value in {'zero': 0, 'one': 1, 'minus': -1}.items()},
        **(constants or {}),
    }
    nodes = [
        *(node('Conv', 'x first', 'a'), node('Less', 'a zero', 'l'), node('Not', 'l', 'n'), node('Where', 'n one minus', 's')),
        *(node('Conv', 's weight', 'c', pads=[1] * 4), node('GlobalAveragePool', 'c', 'm'), node('Expand', 'm repeats', 'e')),
        *(node('Add', 'c e', 'b'), node('GlobalAveragePool', 'b', 'p'), node('Reshape', 'p sizes', 'r')),
        *(more or (node('Relu', 'r'),)),
    ]
    return make(nodes, arrays, {'x': (batch, 4, 6, 6)}, (end,))


def read(model, folder):
    onnx.save(model, folder / 'net.onnx')
    return read_model(folder / 'net.onnx')


def test_the_result_is_that_of_the_model_for_one_image(tmp_path):
    files = []
    for batch in (1, 3, 64):
        onnx.save(network(batch), tmp_path / 'net.onnx')
        assert import_onnx(tmp_path / 'net.onnx', tmp_path / f'packed{batch}').binary_layers == 1
        files.append([(tmp_path / f'packed{batch}{end}').read_bytes() for end in ('-0000.params', '-symbol.json')])
    assert files[0] == files[1] == files[2]


def test_values_are_computed_for_one_image(tmp_path):
    model = read(network(64), tmp_path)
    assert evaluator_of_one_image(model).shapes == {'x': (1, 4, 6, 6)} and model.inputs == {'x': (64, 4, 6, 6)}


def test_a_batch_of_one_or_two_images_or_an_open_one_is_left_as_it_is(tmp_path):
    for batch in (1, 2):
        model = read(network(batch), tmp_path)
        assert evaluator_of_one_image(model) is None
    model = read(make([node('Relu', 'x')], inputs={'x': ('n', 4)}), tmp_path)
    assert evaluator_of_one_image(model) is None


ROWS = np.arange(3, dtype=np.float32)[:, None]
DEPENDENT = {
    'mean of the batch': ([node('ReduceMean', 'r', 'q', axes=[0], keepdims=1), node('Sub', 'r q')], {}),
    'softmax over the batch': ([node('Softmax', 'r', axis=0)], {}),
    'sums over the batch': ([node('CumSum', 'r axis')], {'axis': np.int64(0)}),
    'reversed batch': (
        [node('Slice', 'r start end axes step')],
        {k: np.array([v]) for k, v in zip(('start', 'end', 'axes', 'step'), (-1, -9, 0, -1))},
    ),
    'other order of images': ([node('Gather', 'r order', axis=0)], {'order': np.array([1, 2, 0])}),
    'a constant for each image': ([node('Add', 'r rows')], {'rows': ROWS}),
    'products of images': ([node('Transpose', 'r', 't', perm=[1, 0]), node('MatMul', 'r t')], {}),
    'channels of a batch': ([node('Reshape', 'r flat', 'f'), node('Relu', 'f')], {'flat': np.array([1, 24])}),
}


@pytest.mark.parametrize('kind', DEPENDENT)
def test_a_model_whose_images_depend_on_each_other_keeps_its_batch(kind, tmp_path):
    nodes, constants = DEPENDENT[kind]
    model = read(network(3, *nodes, constants=constants), tmp_path)
    assert evaluator_of_one_image(model) is None
