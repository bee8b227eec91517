"""Optimizers by name: the optimizers of MXNet that a run can use, the defaults of their flags, and the check of further arguments."""

import argparse
import dataclasses
import inspect
import json

import mxnet as mx

from ..arguments import require
from ..errors import UserError, did_you_mean, last_line
from ..optimizers import BinarySplit


@dataclasses.dataclass(frozen=True)
class OptimizerDefaults:
    """Default flags for one optimizer, and its arguments that have no flag.

    `lr_scaling` is how its rate changes with the number of images per update, see `optimization.SCALINGS`.
    """

    lr: float
    wd: float = 0.0
    warmup_epochs: int = 0
    momentum: 'float | None' = None  # None if `--momentum` does not apply to the optimizer
    lr_scaling: str = 'sqrt'
    arguments: dict = dataclasses.field(default_factory=dict)


# radam: learning rate of the MeliusNet paper, section 4.1, which also gives the 5 epochs of warm-up for adam; those for sgd are in
# supplement C. Not in the paper but in the authors' code: weight decay and betas.
OPTIMIZERS = {
    'radam': OptimizerDefaults(lr=0.002, arguments={'beta1': 0.95, 'beta2': 0.999, 'epsilon': 1e-5}),
    'adam': OptimizerDefaults(lr=0.001, warmup_epochs=5),
    'sgd': OptimizerDefaults(lr=0.1, wd=1e-4, warmup_epochs=5, momentum=0.9, lr_scaling='linear'),
    'nag': OptimizerDefaults(lr=0.1, wd=1e-4, warmup_epochs=5, momentum=0.9, lr_scaling='linear'),
}

# Registered with MXNet, but not for training networks.
_REFUSED = {
    'ccsgd': 'an old name of sgd',
    'groupadagrad': 'for embeddings only, its weights must have two axes',
    'lbsgd': 'its own warm-up conflicts with --warmup-epochs, and it keeps gradients that checkpoints do not contain; use lars or lamb',
    'test': "for MXNet's tests only",
    BinarySplit.__name__.lower(): 'made by --binary-optimizer',
}

# Arguments that other flags set, or the trainer.
_FLAGS = {
    'learning_rate': '--lr',
    'lr_scheduler': '--lr-mode',
    'wd': '--wd',
    'multi_precision': '--dtype',
    'begin_num_update': '--resume-epoch',
}
_OF_TRAINER = {'self', 'param_dict', 'param_idx2name', 'rescale_grad', 'sym'}


def optimizer_names():
    """Return the names of all optimizers that a run can use, a sorted list; `mx.optimizer.register` adds to it."""
    return sorted(set(mx.optimizer.Optimizer.opt_registry).difference(_REFUSED))


def optimizer_name(text):
    """Argument type of --optimizer: a name of `optimizer_names`, in any case."""
    name = text.lower()
    if name in _REFUSED:
        raise argparse.ArgumentTypeError(f'{text!r} cannot be used here: {_REFUSED[name]}')
    if name not in optimizer_names():
        suggestion = did_you_mean(name, optimizer_names()) or f'; known: {", ".join(optimizer_names())}'
        raise argparse.ArgumentTypeError(f'unknown optimizer {text!r}{suggestion}')
    return name


def optimizer_defaults(name):
    """Return the `OptimizerDefaults` of an optimizer: a row of `OPTIMIZERS`, or the rate of MXNet without decay and warm-up."""
    return OPTIMIZERS.get(name) or OptimizerDefaults(lr=mx.optimizer.create(name).lr)


def check_optimizer_params(flag, name, arguments):
    """Raise `UserError` unless an optimizer accepts the arguments, a dict: a name is unknown or has a flag, or a value does not work.

    `flag` is the flag that gives them.
    """
    if not arguments:
        return
    kind = mx.optimizer.Optimizer.opt_registry[name]
    own = inspect.signature(kind.__init__).parameters
    signatures = (own, inspect.signature(mx.optimizer.Optimizer.__init__).parameters)
    known = {
        parameter.name
        for parameters in signatures
        for parameter in parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    flags = (
        {**_FLAGS, 'momentum': '--momentum'} if optimizer_defaults(name).momentum is not None and flag == '--optimizer-params' else _FLAGS
    )
    known = sorted(known.difference(_OF_TRAINER, flags))
    for argument in arguments:
        require(argument not in flags, f'{flag}: {argument} of {name} is set by {flags.get(argument)}')
        if argument not in known:
            suggestion = did_you_mean(argument, known) or f'; its arguments are {", ".join(known)}'
            raise UserError(f'{flag}: {name} has no argument {argument!r}{suggestion}')
    try:
        optimizer, weight = mx.optimizer.create(name, **arguments), mx.nd.ones((2, 2))
        optimizer.update(0, weight, mx.nd.ones((2, 2)), optimizer.create_state(0, weight))
        weight.wait_to_read()
    except Exception as error:  # MXNet checks no types: a wrong one may raise anything, some only in an update
        raise UserError(f'{flag} {json.dumps(arguments)}: {name} refuses this: {last_line(error)}') from error
