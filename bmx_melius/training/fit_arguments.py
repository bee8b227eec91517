"""Arguments of `fit`: one clear error for what cannot work, and their names in errors about flags of ``bmx-melius train``."""

import argparse
import functools
import inspect
import numbers
import re

import mxnet as mx
from mxnet import gluon

from ..arguments import MAX_NUMBER, flag_of
from ..errors import UserError
from .optimization import MODES
from .optimizer_names import check_optimizer_params, optimizer_name

_NUMBERS = {  # name -> smallest value, whether it must be whole
    'num_epochs': (1, True),
    'lr': (0, False),
    'seed': (None, True),
    'early_stop': (0, True),
    'ema': (0, False),
    'wd': (0, False),
    'momentum': (0, False),
    'warmup_epochs': (0, True),
    'warmup_lr': (0, False),
    'lr_factor': (0, False),
    'lr_decay_period': (0, True),
    'lr_power': (0, False),
    'binary_lr': (0, False),
}
_TYPES = ('float32', 'float16')
_PHRASES = {'as --resume-params of': 'to net.load_parameters for'}  # what `fit` has in another way


def check_arguments(net, train_data, validation_data, optimizer, loss, trainer, arguments):
    """Raise `UserError` for arguments of `fit` that cannot work. `arguments` are those that are numbers and texts, a dict."""
    if not isinstance(net, gluon.Block):
        raise UserError(f'net must be a network of Gluon, a gluon.Block, not {_shown(net)}')
    _check_batches('train_data', train_data)
    if not len(train_data):
        raise UserError('train_data has no batches: with last_batch="discard" a loader needs as many images as a batch')
    if validation_data is not None:
        _check_batches('validation_data', validation_data)
        if not len(validation_data):
            raise UserError('validation_data has no batches: give None to train without it')
    elif arguments['early_stop']:
        raise UserError('early_stop needs validation_data: without it no epoch is better than another')
    if trainer is None:
        for name, kind in (('optimizer', optimizer), ('binary_optimizer', arguments.get('binary_optimizer'))):
            if kind is not None or name == 'optimizer':
                _check_optimizer(name, kind)
            _check_optimizer_params(f'{name}_params', kind, arguments.get(f'{name}_params'))
        kind = mx.optimizer.Optimizer.opt_registry[optimizer.lower()]
        if arguments.get('momentum') is not None and 'momentum' not in inspect.signature(kind.__init__).parameters:
            raise UserError(f'momentum: {optimizer} has no such argument, but sgd and nag have')
        if not isinstance(arguments.get('lr_decay_epoch', ()), (list, tuple)):
            raise UserError(f'lr_decay_epoch must be a list of epochs, not {_shown(arguments["lr_decay_epoch"])}')
    if loss is not None and not callable(loss) and not hasattr(loss, 'prepare'):
        raise UserError(f'loss must be an Objective or a function of logits and labels, not {_shown(loss)}')
    for name, (low, whole) in _NUMBERS.items():
        if arguments.get(name) is not None:
            _check_number(name, arguments[name], low, whole)
    for name, known in (('dtype', _TYPES), ('lr_mode', MODES)):
        if arguments.get(name, known[0]) not in known:
            raise UserError(f'{name} must be {" or ".join(map(repr, known))}, not {_shown(arguments[name])}')


def _check_optimizer(name, kind):
    if not isinstance(kind, str):
        raise UserError(f'{name} must be the name of an optimizer of MXNet, not {_shown(kind)}; trainer takes a gluon.Trainer')
    try:
        optimizer_name(kind)
    except argparse.ArgumentTypeError as error:
        raise UserError(f'{name}: {error}') from error


def naming_arguments(*others):
    """Return a decorator: a `UserError` names arguments of the function, or of `others`, instead of flags of ``bmx-melius train``."""

    def decorate(function):
        known = {name for each in (function, *others) for name in inspect.signature(each).parameters}

        @functools.wraps(function)
        def call(*arguments, **options):
            try:
                return function(*arguments, **options)
            except UserError as error:
                text = _with_arguments(str(error), known)
                if text == str(error):
                    raise
                raise UserError(text) from error

        return call

    return decorate


def _with_arguments(text, known):
    for phrase, own in _PHRASES.items():
        text = text.replace(phrase, own)
    return re.sub(r'--([a-z][a-z-]*)', lambda flag: _argument(flag, known), text)


def _argument(flag, known):
    name = flag[1].replace('-', '_')
    return name if name in known else flag[0]


def _check_batches(name, batches):
    if not hasattr(batches, '__len__') or not hasattr(batches, '__iter__') or hasattr(batches, 'shape'):
        raise UserError(
            f'{name} must be batches that have a number and can be iterated in each epoch, such as a gluon.data.DataLoader or a list of '
            f'pairs (images, labels), not {_shown(batches)}'
        )


def _check_optimizer_params(name, optimizer, params):
    if params is not None and not isinstance(params, dict):
        raise UserError(f'{name} must be a dict, not {_shown(params)}')
    if optimizer:
        check_optimizer_params(flag_of(name), optimizer_name(optimizer), params)


def _check_number(name, value, low, whole):
    kind = numbers.Integral if whole else numbers.Real
    valid = isinstance(value, kind) and not isinstance(value, bool) and (low is None or value >= low) and abs(value) <= MAX_NUMBER
    if not valid:
        least = '' if low is None else f' of at least {low}'
        least += f' and at most {MAX_NUMBER:g}' if isinstance(value, kind) and value > MAX_NUMBER else ''
        raise UserError(f'{name} must be a {"whole " if whole else ""}number{least}, not {_shown(value)}')


def _shown(value):
    """Return a wrong value, or its type if it may be long."""
    return repr(value) if isinstance(value, (str, numbers.Number, type(None))) else f'an object of type {type(value).__name__}'
