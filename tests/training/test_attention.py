"""Attention transfer: its loss and gradient against NumPy, and the feature maps that are compared."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from support.gradients import gradients
from support.losses import CLASSES, LABELS, objective_in_numpy
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius.errors import UserError
from bmx_melius.graph.tracing import symbol_of
from bmx_melius.training.attention import AttentionTransfer, distance, find_maps
from bmx_melius.training.objective import Objective, Teacher
from model_zoo import get_model

TINY = {
    'block_numbers': [1, 1],
    'transitions': [8],
    'initial_layers': 'thumbnail',
    'growth_rate': 8,
    'init_features': 8,
    'classes': CLASSES,
}


def distance_in_numpy(own, its):
    """The distance of the attention maps for each image, and its gradient by the features `own`; float64."""

    def normalized(features):
        squares = (features.astype(np.float64) ** 2).sum(axis=1)
        return squares / np.sqrt((squares**2).sum(axis=(1, 2), keepdims=True)), squares

    (q, squares), (t, _) = normalized(own), normalized(its)
    d = q - t
    length = np.sqrt((d**2).sum(axis=(1, 2)))
    by_q = d / length[:, None, None]
    norm = np.sqrt((squares**2).sum(axis=(1, 2), keepdims=True))
    by_squares = (by_q - q * (by_q * q).sum(axis=(1, 2), keepdims=True)) / norm
    return length, 2 * own * by_squares[:, None]


@pytest.mark.parametrize('scale', [1e-2, 1, 1e3])
def test_distance_and_gradient_equal_numpy(scale):
    own, its = scale * nd.random.normal(shape=(4, 5, 3, 6)), nd.random.normal(shape=(4, 2, 3, 6))
    length, found = gradients(lambda own: distance(own, its), [own])
    expected, gradient = distance_in_numpy(own.asnumpy(), its.asnumpy())
    np.testing.assert_allclose(length, expected, rtol=1e-5)
    np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-5 / scale)


def test_equal_and_empty_maps_have_finite_gradients():
    features = nd.random.normal(shape=(2, 5, 3, 3))
    for own, its in ((features, features.copy()), (nd.zeros((2, 5, 3, 3)), features)):
        assert all(np.isfinite(found).all() for found in gradients(lambda own, its=its: distance(own, its), [own]))
    np.testing.assert_allclose(distance(features, -3 * features).asnumpy(), 0, atol=1e-5)


def networks():
    """A binary student and a float teacher of other widths, initialized, and images for them."""
    student = get_model('meliusnet_flex', **TINY)
    teacher = get_model('meliusnet_flex', **{**TINY, 'growth_rate': 16, 'init_features': 32, 'bits': 32})
    images = nd.random.normal(shape=(len(LABELS), 1, 8, 8))
    for net in (student, teacher):
        initialized(net, images.shape, mx.init.Xavier())
    return student, teacher, images


def test_the_loss_is_that_of_the_logits_plus_the_weighted_distances_of_all_maps():
    student, teacher, images = networks()
    attention = AttentionTransfer(student, teacher, (1, 8, 8), weight=3.0)
    assert attention.sizes == [(8, 8), (4, 4)] and str(attention) == 'attention maps of 8x8, 4x4 (weight 3)'
    logits, *maps = attention.student(images)
    answers, *teacher_maps = attention.teacher(images)
    np.testing.assert_array_equal(logits.asnumpy(), student(images).asnumpy())
    np.testing.assert_array_equal(answers.asnumpy(), teacher(images).asnumpy())
    objective = Objective(CLASSES, teacher=Teacher(teacher, 2.0, 0.3, attention))
    expected, _ = objective_in_numpy(logits.asnumpy(), np.eye(CLASSES)[LABELS], answers.asnumpy(), 2.0, 0.3)
    for own, its in zip(maps, teacher_maps):
        expected = expected + 3.0 * distance_in_numpy(own.asnumpy(), its.asnumpy())[0]
    found = objective.loss(images, logits, nd.array(LABELS), maps)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-4)


def test_the_gradient_reaches_the_weights_of_the_student_and_not_those_of_the_teacher():
    student, teacher, images = networks()
    attention = AttentionTransfer(student, teacher, (1, 8, 8), weight=1.0)
    objective = Objective(CLASSES, teacher=Teacher(teacher, 1.0, 0.5, attention))
    with autograd.record():
        _, *maps = attention.student(images)
        loss = attention.loss(maps, objective._teacher.answers(images)[1])
    loss.backward()

    def moved(net):
        return {name for name, p in net.collect_params().items() if p.grad_req != 'null' and np.any(p.grad().asnumpy())}

    assert any('qconv' in name for name in moved(student)) and not moved(teacher)
    assert not any(name.endswith(('dense0_weight', 'dense0_bias')) for name in moved(student)), 'logits are not part of it'


ENDS = {'resnet_e18': '_plus3_output', 'resnet18_v1': '_activation1_output'}  # of the last block of a stage


@pytest.mark.parametrize('name', ENDS)
def test_the_maps_are_the_outputs_of_the_stages(name):
    maps = find_maps(symbol_of(get_model(name, prefix='net_'), ['data']), (3, 224, 224))
    assert list(maps) == [(112, 112), (56, 56), (28, 28), (14, 14), (7, 7)]
    for size, stage in (((56, 56), 'stage1'), ((28, 28), 'stage2'), ((14, 14), 'stage3')):
        assert stage in maps[size] and maps[size].endswith(ENDS[name])


def test_signs_are_no_maps():
    first = gluon.nn.Conv2D(4, 3, padding=1, prefix='first_'), gluon.nn.BatchNorm(prefix='norm_')
    net = sequence(*first, bmx.BinaryConv2D(8, 3, strides=2, padding=1, prefix='binary_'), gluon.nn.GlobalAvgPool2D())
    found = find_maps(symbol_of(net, ['data']), (3, 8, 8))
    assert found[8, 8] == 'norm_fwd_output' and list(found) == [(8, 8), (4, 4)]


def test_networks_without_maps_of_equal_size_are_refused():
    student, _, _ = networks()
    dense = sequence(gluon.nn.Dense(CLASSES, in_units=64))
    dense.initialize()
    with pytest.raises(UserError, match='--attention-weight: the feature maps of the network, 8x8, 4x4, and those of its teacher, none'):
        AttentionTransfer(student, dense, (1, 8, 8), 1.0)
