"""Where training fails without an error: quantizers whose gradient is cancelled or whose result is constant, parameters without gradient.

The network is traced and its training pass run once, apart from the network itself: it may be hybridized or not, and neither its
gradients nor its running statistics change.
"""

import dataclasses
import json
from typing import Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from ..errors import UserError, last_line
from ..marks import ACTIVATION, ROLE
from ..quantizers import quantize
from ..text import table
from .graph import Graph, Node, activation_input, symbol_of

NEARLY_ALL = 0.99  # of the inputs or channels of a quantizer, from which on they are a problem
_FEWEST_VALUES = 8  # of a channel, from which on it is no accident that they have one sign


@dataclasses.dataclass(frozen=True)
class CheckedLayer:
    """A row of a `Check`: a quantized activation, or a layer with parameters that are trained. What a row does not have is None.

    Attributes
    ----------
    layer : str
        Name of the block.
    cancelled : float or None
        Fraction of the inputs of an activation through which no gradient flows, for signs those with |x| > threshold.
    positive : float or None
        Fraction of its inputs that are >= 0.
    constant : float or None
        Fraction of its channels (axis 1) whose quantized values are all the same; None where a channel has fewer than 8 values.
    finite : bool
        Whether all inputs of an activation and all gradients of parameters are finite.
    gradient : float or None
        The largest magnitude of a gradient of the layer's parameters, of a random projection of the network's outputs.
    """

    layer: str
    cancelled: Optional[float] = None
    positive: Optional[float] = None
    constant: Optional[float] = None
    finite: bool = True
    gradient: Optional[float] = None

    @property
    def problems(self) -> List[str]:
        """What is wrong with the layer and what to do, one line each."""
        found = []
        if not self.finite:
            found.append(f'{self.layer}: values that are not finite; look at the layers before it and at the input')
        if self.cancelled is not None and self.cancelled >= NEARLY_ALL:
            found.append(
                f'{self.layer}: the gradient of {self.cancelled:.1%} of its inputs is cancelled, so that the layers before it are not '
                'trained; put a BatchNorm before it'
            )
        if self.constant is not None and self.constant >= NEARLY_ALL:
            found.append(
                f'{self.layer}: {self.constant:.1%} of its channels have one value for all inputs, so that the layer after it learns '
                'nothing of them; put a BatchNorm before it, with nothing between that cuts off one sign'
            )
        if self.gradient == 0:
            found.append(f'{self.layer}: the gradient of its parameters is 0; look at the layers after it')
        return found


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of `check`. ``print(result)`` shows the table and the problems.

    Attributes
    ----------
    layers : tuple of CheckedLayer
        In the order of the graph.
    """

    layers: Tuple[CheckedLayer, ...]

    @property
    def problems(self) -> List[str]:
        """What is wrong, one line each, in the order of the graph; empty for a network that can be trained."""
        return [problem for layer in self.layers for problem in layer.problems]

    def __str__(self) -> str:
        rows = [
            (row.layer, *map(_percent, (row.cancelled, row.positive, row.constant)), '' if row.gradient is None else f'{row.gradient:.2g}')
            for row in self.layers
        ]
        headings = ('layer', 'gradient cancelled', 'inputs >= 0', 'constant channels', 'largest gradient')
        return '\n'.join([table(headings, rows, align='<' + '>' * (len(headings) - 1)), '', *(self.problems or ['no problems found'])])


def _percent(fraction):
    return '' if fraction is None else f'{fraction:.1%}'


def check(net: mx.gluon.Block, *inputs: mx.nd.NDArray) -> Check:
    """Look for layers that are not trained although no error is raised.

    Runs one forward pass in training mode and one backward pass, whose output gradients are random numbers, the same in each call. The
    network stays as it was: modes, gradients, running statistics.

    Parameters
    ----------
    net : mxnet.gluon.HybridBlock
        Initialized. Its quantized activations are known by the marks that the layers of this package leave in the graph.
    *inputs : mx.nd.NDArray
        What the network is called with, batch axis first: some samples as in training, because a batch normalization of few values
        tells little.

    Returns
    -------
    Check
        Its `problems` name the layers of which nearly all inputs (99 %) have no gradient, nearly all channels are constant, or values are
        not finite, and those whose parameters have a gradient of exactly 0. A layer whose normalization starts with gamma = 0 has such a
        gradient in the first update, on purpose.

    Raises
    ------
    UserError
        When the network is not initialized, cannot be traced, or does not fit the inputs.

    Examples
    --------
    >>> import mxnet as mx
    >>> import bmx_melius as bmx
    >>> net = mx.gluon.nn.HybridSequential(prefix='net_')
    >>> with net.name_scope():
    ...     net.add(bmx.BinaryConv2D(64, 3), mx.gluon.nn.PReLU(), bmx.BinaryConv2D(64, 3))  # no BatchNorm
    >>> net.initialize()
    >>> for problem in bmx.check(net, mx.nd.random.normal(shape=(2, 64, 8, 8))).problems:
    ...     print(problem)
    net_binaryconv2d0_qconv0: the gradient of its parameters is 0; ...
    net_prelu0: the gradient of its parameters is 0; ...
    net_binaryconv2d1_qactivation0: the gradient of 100.0% of its inputs is cancelled, ...
    net_binaryconv2d1_qactivation0: 100.0% of its channels have one value for all inputs, ...
    """
    names = ['data'] if len(inputs) == 1 else [f'data{number}' for number in range(len(inputs))]
    parameters = _parameters(net, inputs)
    symbol = symbol_of(net, names)
    graph = Graph.read(symbol, {name: x.shape for name, x in zip(names, inputs)})
    activations = {}  # first node of an activation -> the last one
    for node in graph.nodes:
        first = activation_input(node) if node.marks.get(ROLE) == ACTIVATION else None
        if first is not None:
            activations[first] = node
    values, gradients = _training_pass(symbol, dict(zip(names, inputs)), parameters, list(activations))
    blocks = _blocks(net)
    rows: Dict[object, CheckedLayer] = {}  # a node, or the name of a layer with parameters -> its row
    for node in graph.nodes:
        if node in activations:
            rows[node] = _check_activation(_layer_name(blocks, node.name), activations[node], values[node])
        elif node.name in gradients:
            name = _layer_name(blocks, node.name)
            largest = float(np.abs(gradients[node.name]).max())
            before = rows.get(name, CheckedLayer(name, gradient=0.0))
            rows[name] = dataclasses.replace(before, gradient=max(before.gradient, largest), finite=before.finite and np.isfinite(largest))
    return Check(tuple(rows.values()))


def _parameters(net, inputs):
    """The parameters of the network by name; those that wait for their shapes get them by a first forward pass."""
    parameters = net.collect_params()
    try:
        try:
            for parameter in parameters.values():
                parameter.data(inputs[0].context)
        except DeferredInitializationError:
            net(*inputs)
    except (mx.MXNetError, RuntimeError) as error:
        raise UserError(f'the network cannot be run: {last_line(error)}') from error
    return parameters


def _training_pass(symbol, inputs, parameters, activations):
    """The inputs of the nodes `activations` (node to NDArray), and the gradients of the parameters that have one (name to numpy array)."""
    context = next(iter(inputs.values())).context
    internals = symbol.get_internals()
    positions = {(index, slot): place for place, (index, slot, _) in enumerate(json.loads(internals.tojson())['heads'])}
    read = [internals[positions[node.inputs[0].index, node.input_slots[0]]] for node in activations]
    group = mx.sym.Group([symbol, *read])
    # Copies: the pass writes gradients and running statistics.
    arrays = {name: (inputs[name] if name in inputs else parameters[name].data(context)).copy() for name in group.list_inputs()}
    trained = [name for name in group.list_arguments() if name not in inputs and parameters[name].grad_req != 'null']
    for name in (*inputs, *trained):
        arrays[name].attach_grad()
    try:
        with mx.autograd.record():
            outputs = mx.nd.CachedOp(group)(*arrays.values())
        outputs = outputs if isinstance(outputs, list) else [outputs]
        own = outputs[: len(outputs) - len(read)]
        random = np.random.RandomState(0)
        mx.autograd.backward(own, [mx.nd.array(random.randn(*y.shape), ctx=context, dtype=y.dtype) for y in own])
        return dict(zip(activations, outputs[len(own) :])), {name: arrays[name].grad.asnumpy() for name in trained}
    except mx.MXNetError as error:
        raise UserError(f'MXNet cannot run the network: {last_line(error)}') from error


def _check_activation(name: str, node: Node, x: mx.nd.NDArray) -> CheckedLayer:
    """The row of the marked activation whose last node is `node`, for the input `x`."""
    threshold = node.marks.get('threshold', 'None')
    x = x.detach()
    x.attach_grad()
    with mx.autograd.record():
        y = quantize(mx.nd, x, node.marks['method'], int(node.marks['bits']), None if threshold == 'None' else float(threshold))
    y.backward()
    numbers, quantized = x.asnumpy(), y.asnumpy()
    constant = None
    if quantized.ndim > 1 and quantized.size >= _FEWEST_VALUES * quantized.shape[1]:
        channels = np.moveaxis(quantized, 1, 0).reshape(quantized.shape[1], -1)
        constant = float((channels == channels[:, :1]).all(axis=1).mean())
    return CheckedLayer(
        layer=name,
        cancelled=float((x.grad.asnumpy() == 0).mean()),
        positive=float((numbers >= 0).mean()),
        constant=constant,
        finite=bool(np.isfinite(numbers).all()),
    )


def _blocks(net) -> Sequence[mx.gluon.Block]:
    blocks = []
    net.apply(blocks.append)
    return blocks


def _layer_name(blocks, name):
    """The name of the block that a node or parameter belongs to; without prefixes, the name itself."""
    prefix = max((block.prefix for block in blocks if name.startswith(block.prefix)), key=len, default='')
    return prefix.rstrip('_') or name
