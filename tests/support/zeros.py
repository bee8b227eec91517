"""Programs whose results are zeros of both signs, and maxima of them, and their inputs."""

import numpy as np

from support.packed import binary_conv, chain, conv, operation, sign, window

_CHANNELS = 37  # more than a vector of any instruction set


def _affine(scale, shift, channels=_CHANNELS):
    arrays = {'scale': np.resize(np.float32(scale), channels), 'shift': np.resize(np.float32(shift), channels)}
    return operation('affine', arrays=arrays)


def _clip(low, high):
    return operation('clip', arrays={'low': np.full(_CHANNELS, low, 'f'), 'high': np.full(_CHANNELS, high, 'f')})


def _pool(*geometry):
    return operation('max_pool', **window(*geometry))


def _first_layer():
    """Return a convolution of 3 channels whose results, times a scale, are too small for float32: zeros of both signs."""
    weight = np.random.RandomState(0).randn(_CHANNELS, 3, 3, 3) * 1e-20
    return conv(weight.astype('f'), **window(3, pad=1)), _affine((1e-30, -1e-30), (0, -0.0))


# Each with a maximum at its end, so that no result is -0.
MAXIMA = {
    'pool 2': [_pool(2, 2)],
    'pool 3': [_pool(3, 2, 1)],
    'pool 3 by 5': [_pool((3, 5), (1, 3), 1)],
    'pool of scaled zeros': [_affine((2, -2, 0, -0.0), (0, -0.0)), _pool(2, 2)],
    'pool of numbers that become zeros': [_affine((1e-30, -1e-30), (-0.0, 0)), _pool(3, 2, 1)],
    'pool, then relu': [_affine((1, -1), -0.0), _pool(2, 2), operation('relu')],
    'relu, then pool': [operation('relu'), _pool(3, 1, 1)],
    'pool before a convolution with kernel 1': [_pool(2, 2), conv(np.eye(_CHANNELS, dtype='f')[:, :, None, None])],
    'pool of a binary layer': [
        *(sign(_CHANNELS), binary_conv(np.random.RandomState(0).rand(_CHANNELS, 3, 3, _CHANNELS) < 0.5, **window(3, pad=1))),
        *(_affine((1, -1, 0, -0.0), (0, -0.0)), _pool(2, 2)),
    ],
    'global pool': [operation('global_max_pool')],
    'stem, pool 2': [*_first_layer(), _pool(2, 2)],
    'stem, pool 3 by 2': [*_first_layer(), _pool(3, 2, 1)],
    'stem, pool 3': [*_first_layer(), _pool(3, 1, 1)],
    'maximum': [_affine(-1, -0.0), operation('maximum', 0, 1)],
    'maximum, exchanged': [_affine(-1, -0.0), operation('maximum', 1, 0)],
    'maximum of a map that is read again': [
        _affine(-1, -0.0),
        operation('maximum', 1, 0),
        operation('relu', 1),
        operation('maximum', 2, 3),
    ],
}
OTHERS = {
    'relu': [operation('relu')],
    'clip from 0': [_clip(0, 6)],
    'clip from -0': [_clip(-0.0, 6)],
    'clip to 0': [_clip(-6, 0)],
    'clip to -0': [_clip(-6, -0.0)],
    'round': [_affine((0.25, -0.25), (0, -0.0)), operation('round')],
    'abs': [operation('abs')],
    'prelu': [operation('prelu', arrays={'slope': np.resize(np.float32([0, -0.0, 0.5, -0.5]), _CHANNELS)})],
    'affine': [_affine((1, -1, 0, -0.0), (0, -0.0, -0.0))],
    'divide': [operation('divide', arrays={'divisor': np.resize(np.float32([1, -1]), _CHANNELS)})],
    'sums': [operation('add', 0, 0), operation('multiply', 0, 1), operation('add', 1, 2)],
    'mean of a window': [operation('avg_pool', **window(2, 2))],
    'mean of a map': [operation('global_avg_pool')],
    'mean of channels': [operation('channel_mean')],
    'convolution': [conv(-np.eye(_CHANNELS, dtype='f')[:, :, None, None])],
    'convolution with a bias': [conv(-np.eye(_CHANNELS, dtype='f')[:, :, None, None], bias=np.full(_CHANNELS, -0.0, 'f'))],
}


def program_of(name):
    """Return a program of `MAXIMA` or `OTHERS`, and a list with its input."""
    operations = {**MAXIMA, **OTHERS}[name]
    channels = 3 if operations[0].name == 'conv' and operations[0].arrays['weight'].shape[1] == 3 else _CHANNELS
    random = np.random.RandomState(0)
    x = random.choice(np.float32([0.0, -0.0, -1.0]), (2, channels, 8, 7), p=(0.4, 0.4, 0.2))
    x[0, :, :4] = random.choice(np.float32([0.0, -0.0]), x[0, :, :4].shape)  # windows without any other number
    x[1, :, :2, :2] = -0.0
    x[1, ::2] *= 0  # maps of zeros only
    if 'numbers that become zeros' in name:
        x *= 0
        x += random.choice(np.float32([1e-20, -1e-20]), x.shape)
    return chain(x.shape[1:], *operations), [x]
