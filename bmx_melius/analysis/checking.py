"""Detection of layers that training silently does not change: cancelled gradients, constant quantized values, zero gradients.

The network is traced, and one training pass is run on copies of its parameters. The network may be hybridized or not, and neither its
gradients nor its running statistics change.
"""

import dataclasses
import json
from typing import Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from ..errors import UserError, last_line
from ..graph.nodes import Node, first_node
from ..graph.tracing import read_graph, symbol_of
from ..nn.marks import ACTIVATION, ACTIVATION_INPUT, ROLE
from ..nn.quantizers import QUANTIZERS, quantize
from ..reporting import table

NEARLY_ALL = 0.99  # fraction of the inputs or channels of a quantizer from which they are reported as a problem
_FEWEST_VALUES = 8  # per channel; fewer values may have equal signs by chance


@dataclasses.dataclass(frozen=True)
class CheckedLayer:
    """A row of a `Check`: a quantized activation, or a layer with trained parameters. Attributes that do not apply are None.

    Attributes
    ----------
    layer : str
        Name of the block.
    cancelled : float or None
        Fraction of the inputs of an activation whose gradient is 0; for sign those with |x| > threshold.
    positive : float or None
        Fraction of the inputs of an activation that are >= 0.
    constant : float or None
        Fraction of the channels (axis 1) of an activation whose quantized values are all equal; None for fewer than 8 values per channel.
    finite : bool
        Whether all inputs of an activation and all gradients of parameters are finite.
    gradient : float or None
        Largest magnitude of a gradient of the layer's parameters, for random gradients of the network's outputs.
    """

    layer: str
    cancelled: Optional[float] = None
    positive: Optional[float] = None
    constant: Optional[float] = None
    finite: bool = True
    gradient: Optional[float] = None

    @property
    def problems(self) -> List[str]:
        """Problems of the layer and what to do about them, one line each."""
        found = []
        if not self.finite:
            found.append(f'{self.layer}: values are not finite; check the layers before it and the input')
        if self.cancelled is not None and self.cancelled >= NEARLY_ALL:
            found.append(
                f'{self.layer}: the gradient of {self.cancelled:.1%} of its inputs is cancelled, so that the layers before it are not '
                'trained; put a BatchNorm before it'
            )
        if self.constant is not None and self.constant >= NEARLY_ALL:
            found.append(
                f'{self.layer}: {self.constant:.1%} of its channels have one value for all inputs, so that the layer after it gets no '
                'information from them; put a BatchNorm directly before it, without a ReLU between them'
            )
        if self.gradient == 0:
            found.append(f'{self.layer}: the gradient of its parameters is 0; check the layers after it')
        return found


@dataclasses.dataclass(frozen=True)
class Check:
    """Result of `check`. ``print(result)`` shows a table of the layers and the problems.

    Attributes
    ----------
    layers : tuple of CheckedLayer
        In topological order.
    """

    layers: Tuple[CheckedLayer, ...]

    @property
    def problems(self) -> List[str]:
        """Problems of all layers, one line each, in topological order; empty if none was found."""
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
    """Find layers that cannot be trained although no error is raised.

    Runs one forward pass in training mode and one backward pass with random output gradients, which are the same in each call. Modes,
    gradients and running statistics of the network do not change.

    Parameters
    ----------
    net : mxnet.gluon.HybridBlock
        Initialized. Quantized activations are found by the marks of this package's layers in the graph.
    *inputs : mx.nd.NDArray
        Arguments of the network, batch axis first. Use several samples of training data, because the statistics of a batch
        normalization over few values are not representative.

    Returns
    -------
    Check
        Its `problems` name layers in which at least 99 % of the inputs have no gradient or 99 % of the channels are constant, layers with
        values that are not finite, and layers whose parameters have a gradient of exactly 0. The latter is intended in the first update
        for a layer followed by a normalization that is initialized with gamma = 0.

    Raises
    ------
    UserError
        If the network is not initialized, cannot be traced, or cannot be run on the inputs.

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
    graph = read_graph(symbol, {name: x.shape for name, x in zip(names, inputs)})
    activations = {}  # first node of an activation -> its last node
    for node in graph.nodes:
        known = node.marks.get(ROLE) == ACTIVATION and node.marks.get('method') in QUANTIZERS  # others have parameters
        first = first_node(node, ACTIVATION_INPUT) if known else None
        if first is not None:
            activations[first] = node
    values, gradients = _training_pass(symbol, dict(zip(names, inputs)), parameters, list(activations))
    blocks = _blocks(net)
    rows: Dict[object, CheckedLayer] = {}  # key: first node of an activation, or name of a layer with parameters
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
    """Return the parameters by name. A forward pass completes deferred initialization."""
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
    """Run one training pass. Returns the inputs of `activations` (node to NDArray) and gradients of parameters (name to numpy array)."""
    context = next(iter(inputs.values())).context
    internals = symbol.get_internals()
    positions = {(index, slot): place for place, (index, slot, _) in enumerate(json.loads(internals.tojson())['heads'])}
    read = [internals[positions[node.inputs[0].index, node.input_slots[0]]] for node in activations]
    group = mx.sym.Group([symbol, *read])
    # Copies, because the pass writes gradients and running statistics.
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
    """Return the row of the marked activation whose last node is `node`, for the input `x`."""
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
    """Return the name of the block that a node or parameter belongs to, or `name` if no prefix matches."""
    prefix = max((block.prefix for block in blocks if name.startswith(block.prefix)), key=len, default='')
    return prefix.rstrip('_') or name
