"""Signs of scaled sums of integers, without a normalization between: packed networks decide them by the exact sum, ties included."""

import numpy as np
import pytest
from support.tiny_onnx import make, node, signs

import bmx_melius as bmx
from bmx_melius import UserError

pytestmark = pytest.mark.usefixtures('without_trial')

RANDOM = np.random.RandomState(0)
CHANNELS, FILTERS = 16, 32
SCALES = RANDOM.uniform(0.05, 0.2, (FILTERS, 1, 1, 1)).astype(np.float32)
NUMBERS = {'zero': np.float32(0), 'one': np.float32(1), 'minus': np.float32(-1), 'last': signs(4, FILTERS, 1, 1, seed=9)}
AT_LEAST = (lambda x: [node('Less', f'{x} zero', f'{x}l'), node('Where', f'{x}l minus one', f'{x}s')]), (lambda k: k >= 0)
ABOVE = (lambda x: [node('Greater', f'{x} zero', f'{x}g'), node('Where', f'{x}g one minus', f'{x}s')]), (lambda k: k > 0)
AT_MOST = (lambda x: [node('Greater', f'{x} zero', f'{x}g'), node('Where', f'{x}g minus one', f'{x}s')]), (lambda k: k <= 0)
SIGN = (lambda x: [node('Sign', x, f'{x}s')]), (lambda k: k >= 0)  # zero is positive
FORMS = {'at least': AT_LEAST, 'above': ABOVE, 'at most': AT_MOST, 'sign': SIGN}


def convolved(s, weight):
    """Return the exact sums of a convolution of integers (1, C, H, W), without padding."""
    _, _, height, width = weight.shape
    rows, columns = s.shape[2] - height + 1, s.shape[3] - width + 1
    windows = ((i, j) for i in range(height) for j in range(width))
    return sum(np.einsum('nihw,oi->nohw', s[:, :, i : i + rows, j : j + columns], weight[:, :, i, j].astype(np.int64)) for i, j in windows)


def require_exact(nodes, constants, expected, tmp_path, form=AT_LEAST, noted=True):
    """Import a network from x over its signs 'xs' and value 'k' to the sign of 'k' and a last layer; compare it with exact signs."""
    shape = 1, CHANNELS, 10, 10
    model = make([*AT_LEAST[0]('x'), *nodes, *form[0]('k'), node('Conv', 'ks last')], {**NUMBERS, **constants}, {'x': shape})
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    report = bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed', zero_is_positive=True)
    x = RANDOM.normal(size=shape).astype(np.float32)
    k = expected(np.where(x >= 0, 1, -1))
    assert 0.002 < (k == 0).mean() < 0.6, 'ties'
    wanted = convolved(np.where(form[1](k), 1, -1), constants.get('last', NUMBERS['last']))
    np.testing.assert_array_equal(bmx.Session(tmp_path / 'packed')(x), wanted)
    assert ('the packed network compares the exact sum' in ' '.join(report.notes)) == noted


@pytest.mark.parametrize(
    'form, bias, negative',
    [('at least', 0, False), ('above', 0, True), ('sign', 0, True), ('at least', 8, True), ('above', -6, False), ('at most', 8, True)],
)
def test_scales_of_filters_and_biases_that_are_multiples(form, bias, negative, tmp_path):
    scales = SCALES * (signs(FILTERS, 1, 1, 1, seed=5) if negative else 1)
    w = signs(FILTERS, CHANNELS, 3, 3)
    constants = {'w': w * scales, 'b': bias * SCALES.reshape(-1)}
    nodes = [node('Conv', 'xs w b' if bias else 'xs w', 'k')]
    exact = w * (scales > 0) - w * (scales < 0)
    require_exact(nodes, constants, lambda s: convolved(s, exact) + bias, tmp_path, FORMS[form])


BETWEEN = {
    'factor': ([node('Conv', 'xs w', 'c'), node('Mul', 'c a', 'k')], lambda k: k),
    'negative factor': ([node('Conv', 'xs w', 'c'), node('Mul', 'c a', 'm'), node('Neg', 'm', 'k')], lambda k: -k),
    'scaled': ([node('Conv', 'xs wa', 'k')], lambda k: k),
    'relu': ([node('Conv', 'xs wa', 'c'), node('Relu', 'c', 'k')], lambda k: np.maximum(k, 0)),
    'prelu': ([node('Conv', 'xs wa', 'c'), node('PRelu', 'c slope', 'k')], lambda k: k),
    'two layers': ([node('Conv', 'xs wa', 'c'), node('Conv', 'xs va', 'd'), node('Add', 'c d', 'k')], None),
    'difference': ([node('Conv', 'xs wa', 'c'), node('Conv', 'xs va', 'd'), node('Sub', 'c d', 'k')], None),
    'pooling': ([node('Conv', 'xs wa', 'c'), node('MaxPool', 'c', 'k', kernel_shape=[2, 2])], None),
    'mean': ([node('Conv', 'xs wa', 'c'), node('AveragePool', 'c', 'k', kernel_shape=[2, 2])], None),
    'few bits': ([node('Conv', 'xs three', 'k')], None),
    'zeros': ([node('Conv', 'xs sparse', 'k')], None),
    'halves': ([node('Conv', 'xs wa', 'c'), node('Conv', 'xs va', 'd'), node('Concat', 'c d', 'k', axis=1)], None),
}


@pytest.mark.parametrize('between', BETWEEN)
def test_what_is_between_a_layer_and_a_sign(between, tmp_path):
    w, v = signs(FILTERS, CHANNELS, 3, 3), signs(FILTERS, CHANNELS, 3, 3, seed=1)
    more = {'three': RANDOM.choice([-3, -1, 1, 3], w.shape), 'sparse': RANDOM.choice([-1, 0, 1], w.shape)}
    constants = {'w': w, 'wa': w * SCALES, 'va': v * SCALES, 'a': SCALES.reshape(-1, 1, 1), 'slope': np.full((FILTERS, 1, 1), 0.25, 'f')}
    constants.update((name, (array * SCALES).astype(np.float32)) for name, array in more.items())

    def windows(k):
        height, width = k.shape[2:]
        return np.stack([k[:, :, i : height - 1 + i, j : width - 1 + j] for i in (0, 1) for j in (0, 1)])

    def exact(s):
        c, d = convolved(s, w), convolved(s, v)
        results = {'two layers': c + d, 'difference': c - d, 'pooling': windows(c).max(0), 'mean': windows(c).sum(0)}
        results.update({'few bits': convolved(s, more['three']), 'zeros': convolved(s, more['sparse'])})
        results['halves'] = np.concatenate([c, d], axis=1)
        return results[between] if between in results else BETWEEN[between][1](c)

    if between == 'halves':
        constants['last'] = signs(4, 2 * FILTERS, 1, 1, seed=9)
    form = ABOVE if between in ('relu', 'pooling', 'difference') else AT_LEAST  # a ReLU is at least 0 everywhere
    require_exact(BETWEEN[between][0], constants, exact, tmp_path, form, noted='factor' not in between)  # ONNX Runtime adds integers


def test_a_refusal_of_other_ties_names_the_way_on(tmp_path):
    """Weights of real magnitudes, of which two of each have opposite signs: no integer decides."""
    magnitudes = RANDOM.uniform(0.05, 0.2, (8, 1, 1, 3))
    constants = {'w': (signs(8, 2, 1, 3) * magnitudes).astype(np.float32), **NUMBERS, 'last': signs(4, 8, 1, 1)}
    nodes = [*AT_LEAST[0]('x'), node('Conv', 'xs w', 'k', pads=[0, 1, 0, 1]), *AT_LEAST[0]('k'), node('Conv', 'ks last')]
    (tmp_path / 'net.onnx').write_bytes(make(nodes, constants, {'x': (1, 2, 20, 20)}).SerializeToString())
    with pytest.raises(UserError, match=r'belong to numbers at their threshold.*--no-verify'):
        bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed')
    assert bmx.import_onnx(tmp_path / 'net.onnx', tmp_path / 'packed', verify=False).binary_layers == 2
