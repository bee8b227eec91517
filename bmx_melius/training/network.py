"""From the flags to the network that is trained."""

import contextlib
import io

import mxnet as mx

from ..errors import UserError, last_line
from ..seeding import seed_all, seed_for
from .options import INITIALIZERS


def model_arguments(options, classes, of_weights=()):
    """The arguments of get_model for the network that the flags ask for; those that are not needed are left out.

    `of_weights` are the arguments that pretrained weights bring along.
    """
    model = {'name': options.model, 'classes': classes, **dict(of_weights)}
    if options.initial_layers is not None:
        model['initial_layers'] = options.initial_layers
    if options.clip_threshold is not None:
        model['clip_threshold'] = options.clip_threshold
    if options.bits != 1:
        model['bits'] = options.bits
    if options.weight_bits != options.bits:
        model['weight_bits'] = options.weight_bits
    if options.last_gamma:
        model['last_gamma'] = True
    return {**model, **options.model_options}


def make_network(options, get_model, model, spec, devices):
    """The network, initialized.

    Parameters
    ----------
    options : argparse.Namespace
        Of train_imagenet.py: `model`, `model_options`, `use_pretrained`, `resume`, `initialization`, `seed`, `dtype`, `mode`, `no_wd`.
    get_model : function
        As `model_zoo.get_model`.
    model : dict
        Its arguments.
    spec : InputSpec
    devices : list of mx.Context

    Raises
    ------
    UserError
        When the flags do not fit the network, or the input is too small for it.
    """
    pretrained = False if options.resume else options.use_pretrained  # what goes on has its own weights
    prefix = options.model.replace('_', '') + '_'  # of parameters, whose names begin with that of the network up to the first underscore
    try:
        net = get_model(pretrained=pretrained, ctx=devices, prefix=prefix, **model)
    except TypeError as error:
        if not options.model_options:
            raise
        raise UserError(f'--model-options do not fit {options.model}: {error}') from error
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # where MXNet prints the arguments when this fails
            net.infer_shape(mx.nd.zeros((1, *spec.shape)))
    except mx.MXNetError as error:
        raise UserError(
            f'--input-size {spec.size} is too small for {options.model} with initial_layers {model["initial_layers"]}: {last_line(error)}'
        ) from error
    seed_all(seed_for(options.seed))
    if not pretrained:
        net.initialize(INITIALIZERS[options.initialization], ctx=devices)
    net.cast(options.dtype)
    if options.mode == 'hybrid':
        net.hybridize(static_alloc=True, static_shape=True)
    if options.no_wd:
        for parameter in net.collect_params('.*beta|.*gamma|.*bias').values():
            parameter.wd_mult = 0.0
    return net
