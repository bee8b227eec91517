"""Construction of the network that a configuration describes."""

import contextlib
import io
import random

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..arithmetic import seed_for
from ..errors import UserError, last_line

INITIALIZERS = {
    'gaussian': mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2),
    'msraprelu': mx.init.MSRAPrelu(),
    'xavier': mx.init.Xavier(),
    # names of BMXNet-v2
    'default': mx.init.Xavier(magnitude=2),
    'msraprelu_avg': mx.init.MSRAPrelu(),
    'msraprelu_in': mx.init.MSRAPrelu(factor_type='in'),
}

# Flags that are arguments of the network; networks without such an argument are trained without the flag.
NETWORK_OPTIONS = (
    'initial_layers', 'clip_threshold', 'bits', 'weight_bits', 'activation_bits', 'activation_method', 'weight_quantization',
    'approximation', 'downsample_structure', 'slices', 'shortcut_groups', 'binary_shortcut', 'strided_shortcut',
)  # fmt: skip

SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 299)  # of images, of which an error message names the smallest that fits


def model_arguments(options, classes, of_weights=()):
    """Return the arguments of `get_model` for the `TrainingOptions` of a run, without arguments that equal their defaults.

    `of_weights` are arguments determined by pretrained weights; those in the options override them.
    """
    default = {'bits': 1, 'weight_bits': options.bits, 'last_gamma': False}
    given = {name: getattr(options, name) for name in (*NETWORK_OPTIONS, 'last_gamma')}
    given = {name: value for name, value in given.items() if value not in (None, default.get(name))}
    return {'name': options.model, 'classes': classes, **dict(of_weights), **given, **options.model_options}


def create_network(options, get_model, model, **arguments):
    """Return the network of the `TrainingOptions` of a run, not initialized.

    `model` and `arguments` are arguments of `get_model`. Raises `UserError` when the flags do not fit the network.
    """
    try:
        return get_model(**arguments, **model)
    except TypeError as error:
        if not options.model_options:
            raise
        raise UserError(f'--model-options do not fit {options.model}: {error}') from error


def make_network(options, get_model, model, spec, devices):
    """Return the network with random weights.

    Parameters
    ----------
    options : TrainingOptions
    get_model : function
        Function with the interface of `model_zoo.get_model`.
    model : dict
        Arguments of `get_model`.
    spec : InputSpec
    devices : list of mx.Context

    Raises
    ------
    UserError
        When the flags do not fit the network, or the input is too small for it.
    """
    # Of parameter names, whose part up to the first underscore names the network; names with dots would be taken for structural names.
    prefix = options.model.rpartition(':')[2].replace('_', '').replace('.', '') + '_'
    net = create_network(options, get_model, model, prefix=prefix)
    refusal = _refusal(net, spec.shape)
    if refusal:
        larger = [size for size in SIZES if size > spec.size]
        other = (size for size in larger if not _refusal(create_network(options, get_model, model), (spec.channels, size, size)))
        fitting = next(other, None)
        advice = f'--input-size {fitting} fits' if fitting else last_line(refusal)
        stem = f' with initial_layers {model["initial_layers"]}' if 'initial_layers' in model else ''
        stem += ', which the weights of --use-pretrained need' if stem and options.use_pretrained else ''
        shape = ' x '.join(map(str, spec.shape))
        raise UserError(f'images of {shape} (--input-size {spec.size}) do not fit {options.model}{stem}: {advice}') from refusal
    seed_generators(options.seed)
    net.initialize(INITIALIZERS[options.initialization], ctx=devices)
    net.cast(options.dtype)
    if options.mode == 'hybrid':
        net.hybridize(static_alloc=True, static_shape=True)
    return net


def _refusal(net, shape):
    """Return the error of a new network for images of the shape (C, H, W), None if they fit."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # MXNet prints the arguments when this fails
            net.infer_shape(mx.nd.zeros((1, *shape)))
    except (AssertionError, mx.MXNetError) as error:
        return error
    return None


def seed_generators(seed, *place):
    """Seed the generators from which initializers draw, of MXNet, Python and NumPy, by `seed_for`."""
    for generator in (mx.random, random, np.random):
        generator.seed(seed_for(seed, *place))


def check_dtype(dtype, device):
    """Raise `UserError` unless `device` (mx.Context) supports convolutions and dense layers in `dtype`, forward and backward."""
    if dtype == 'float32':
        return
    data = mx.nd.ones((1, 4, 4, 4), ctx=device, dtype=dtype)
    weight, dense = mx.nd.ones((4, 4, 3, 3), ctx=device, dtype=dtype), mx.nd.ones((2, 16), ctx=device, dtype=dtype)
    for array in (weight, dense):
        array.attach_grad()
    try:
        with autograd.record():
            y = mx.nd.FullyConnected(
                mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=4, no_bias=True), dense, num_hidden=2, no_bias=True
            )
        y.backward()
        weight.grad.wait_to_read()
        dense.grad.wait_to_read()
    except mx.MXNetError as error:
        raise UserError(
            f'--dtype {dtype}: this MXNet cannot train with it on {device} ({last_line(error)}); leave the flag out, or use '
            'a GPU (--num-gpus 1) and a build of MXNet for it'
        ) from error
