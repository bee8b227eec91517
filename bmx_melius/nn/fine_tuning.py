"""Fine-tuning: weights of a network with another number of classes, and parameters that are not trained (frozen)."""

import dataclasses
import re
from typing import Any, Dict, List, Optional

import mxnet as mx
from mxnet.gluon import Block, nn

from ..errors import UserError, name_some
from ..files.parameters import difference

_COLOURS = 3  # channels of images that are not gray


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a network received from stored weights.

    Attributes
    ----------
    unused : dict of str to (NDArray or numpy.ndarray)
        Arrays that were not loaded, by the names of their parameters in ``.params`` files: the arrays of the output layer, if the weights
        have another number of classes; else none.
    classes : int
        Number of classes of the network.
    weights_classes : int
        Number of classes of the weights.
    summed : str or None
        Parameter that was summed over its input channels, because the images of this network are gray; else None.
    """

    unused: Dict[str, Any]
    classes: int
    weights_classes: int
    summed: Optional[str] = None

    @property
    def new(self) -> List[str]:
        """Names of the parameters that were not loaded."""
        return list(self.unused)

    def __str__(self):
        gray = f'; {self.summed} is summed over the colours, for gray images' if self.summed else ''
        if not self.new:
            return f'all parameters are loaded{gray}'
        return (
            f'{self.weights_classes} classes, this network {self.classes}: the output layer ({name_some(self.new)}) is newly initialized; '
            f'the rest is loaded{gray}'
        )


def load_weights(net: Block, arrays: Dict, classes: int) -> Loaded:
    """Load arrays into a network; if they are of another number of classes, load all but the output layer, which keeps its values.

    The output layer is recognized by its shapes: its parameters have as many rows as there are classes, and all other axes agree. Weights
    of a first convolution for three colours are summed over them if the network takes gray images: it then computes the same as from
    three equal channels.

    Parameters
    ----------
    net : gluon.Block
        Initialized, or with parameters of unknown shapes, which are then initialized by MXNet's default initializer.
    arrays : dict of str to NDArray or numpy.ndarray
        Names as in files of `save_parameters` (``features.0.weight``), as in files of older versions of MXNet (without the prefix of the
        network), or the full names of parameters.
    classes : int
        Number of classes of the network.

    Raises
    ------
    UserError
        When names or shapes of other parameters differ; the network is not changed.
    """
    parameters = net._collect_params_with_prefix()
    arrays = _with_structural_names(net, parameters, arrays)
    arrays, summed = _with_input_channels(arrays, parameters)
    stored = {name: tuple(array.shape) for name, array in arrays.items()}
    needed = {name: _complete(parameter.shape, stored.get(name)) for name, parameter in parameters.items()}
    missing = [name for name in needed if name not in stored]
    if missing:
        raise UserError(f'{name_some(missing)} of the network {"is" if len(missing) == 1 else "are"} missing in the file')
    new, weights_classes = _output_layer(stored, needed, classes)
    wrong = difference({name: shape for name, shape in stored.items() if name not in new}, needed)
    if wrong:
        raise UserError(wrong)
    for name, parameter in parameters.items():
        parameter.shape = needed[name]
    devices = next((parameter.list_ctx() for parameter in parameters.values() if parameter._data is not None), None)
    if devices is None:
        net.initialize()
    for name, array in arrays.items():
        if name not in new:
            parameters[name].set_data(mx.nd.array(array, dtype=parameters[name].dtype))
    return Loaded({name: arrays[name] for name in new}, classes, weights_classes, summed)


def freeze(net: Block, pattern: str) -> List[str]:
    r"""Exclude parameters from training, and return their names.

    Frozen parameters have no gradient and do not change. A batch normalization with frozen running statistics normalizes with these, as
    in inference, instead of the statistics of the batch (as in Keras; PyTorch's ``requires_grad = False`` leaves the statistics moving).

    Parameters
    ----------
    net : gluon.Block
        Not hybridized, or not run yet.
    pattern : str
        Regular expression that is searched in the names of ``.params`` files: ``features`` freezes all parameters but the output layer's,
        ``^features\.[0-3]\.`` the first four children of ``features``.

    Raises
    ------
    UserError
        When the pattern is not a regular expression, or if it matches no parameter or all trained parameters.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f'{pattern!r} is not a regular expression: {error}') from error
    parameters = net._collect_params_with_prefix()
    frozen = [name for name in parameters if expression.search(name)]
    if not frozen:
        raise UserError(f'no parameter has a name in which {pattern!r} is found; their names are {name_some(list(parameters))}')
    for name in frozen:
        parameters[name].grad_req = 'null'
        parameters[name].lr_mult = 0.0  # distinguishes them from running statistics, which have no gradient either
    if all(parameter.grad_req == 'null' for parameter in parameters.values()):
        raise UserError(f'{pattern!r} is found in the names of all parameters: nothing would be trained')
    net.apply(_stop_statistics)
    return frozen


def is_frozen(parameter: Optional[mx.gluon.Parameter]) -> bool:
    """Return whether `freeze` has excluded a parameter from training."""
    return parameter is not None and parameter.grad_req == 'null' and parameter.lr_mult == 0


def _stop_statistics(block):
    if isinstance(block, nn.BatchNorm) and is_frozen(block.running_mean) and is_frozen(block.running_var):
        block._kwargs['use_global_stats'] = True


def _with_structural_names(net, parameters, arrays):
    if any('.' in name for name in arrays):
        return arrays
    names = {id(parameter): name for name, parameter in parameters.items()}
    full = net.collect_params()
    structural = {name: names[id(parameter)] for name, parameter in full.items() if id(parameter) in names}
    if not any(name in structural for name in arrays):
        structural = {name[len(net.prefix) :]: own for name, own in structural.items()}
    return {structural.get(name, name): array for name, array in arrays.items()}


def _with_input_channels(arrays, parameters):
    """Return the arrays with the weights of the first convolution summed over colours for a network of gray images, and their name."""
    for name, array in arrays.items():
        shape = tuple(parameters[name].shape or ()) if name in parameters else ()
        if len(shape) == 4 and shape[1] == 1 and tuple(array.shape) == (shape[0], _COLOURS, *shape[2:]):
            return {**arrays, name: array.sum(axis=1, keepdims=True)}, name
    return arrays, None


def _complete(shape, stored):
    """Return the shape of a parameter with the axes that are not known yet (0) taken from the stored array, if there are as many axes."""
    shape = tuple(shape or ())
    if stored is None or len(stored) != len(shape):
        return shape
    return tuple(own or there for own, there in zip(shape, stored))


def _output_layer(stored, needed, classes):
    """Return the names of the parameters that differ in the number of classes only, and the number of classes of the stored parameters."""
    differing = [
        name
        for name, shape in stored.items()
        if name in needed and shape != needed[name] and needed[name][:1] == (classes,) and shape[1:] == needed[name][1:]
    ]
    found = {stored[name][0] for name in differing}
    return (differing, found.pop()) if len(found) == 1 else ([], classes)
