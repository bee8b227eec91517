"""Faster execution of binary activations in hybridized networks, in training and inference.

Layers consist of MXNet's own operators, and so does everything that is exported. Where MXNet prepares the graph of a hybridized block for
execution, the operators of a sign with its straight-through estimator, nine or more, become one, ``bmx_melius_sign``, with the same
values and gradients, bit for bit. It makes one pass over the map forward and one backward, and keeps one array instead of three for the
latter. On processors that have kernels for it, the sign and the binary convolution that reads it become one operator,
``bmx_melius_convolution``. It counts bits for its value, which is exact, as MXNet's is for the method ``sign``. For its gradients it
looks up sums of numbers by bits, or multiplies by AMX: they are MXNet's but for the order of additions, and do not depend on the number of
threads.
In training, ``bmx_melius_batch_norm`` normalizes channel by channel where oneDNN reads whole maps for each pass, and adds another map.
On processors with AVX2, but not AVX-512, where oneDNN has only slow pooling for maps in the layout NCHW, ``bmx_melius_max_pool`` replaces
maximum pooling, with the same bits.
"""

import collections
import functools
import os
from typing import Any, Callable, Dict

import mxnet as mx
import numpy as np

from ..files.symbol_json import VARIABLE, SymbolJson, integers, truth
from .marks import ACTIVATION, ACTIVATION_INPUT, CONVOLUTION, ROLE, key, read_marks

OPERATOR = 'bmx_melius_sign'
CONVOLUTION_OPERATOR = 'bmx_melius_convolution'
GEOMETRY = {'stride': (1, 1), 'pad': (0, 0), 'dilate': (1, 1)}  # attributes of a Convolution and their defaults
MOST_READERS = 3  # fused convolutions of one weight: MXNet adds the gradients of a value with eight readers in place, see `_fuse`
NORMALIZATION_OPERATOR = 'bmx_melius_batch_norm'
NORMALIZATION = {'eps': '0.001', 'momentum': '0.9'}  # attributes of a BatchNorm that it has, too, and their defaults
SUM_OPERATOR = 'elemwise_add'
PLAIN_NORMALIZATION = {'fix_gamma': 'True', 'use_global_stats': 'False', 'output_mean_var': 'False', 'axis': '1'}  # others, their defaults
POOLING_OPERATOR = 'bmx_melius_max_pool'
WINDOWS = {'kernel': (), 'stride': (1, 1), 'pad': (0, 0)}  # attributes of a Pooling that it has, too,
PLAIN_POOLING = {'pool_type': 'max', 'global_pool': 'False', 'pooling_convention': 'valid', 'layout': 'NCHW'}  # others that it requires
KERNELS = ('amx', 'avx512', 'avx2')  # instruction sets that have kernels for it, the best one first
MOST_REACH = 24  # pixels from the first to the last one of a window, down or across: the tables of larger ones are too large
METHODS = ('sign', 'approx_sign')
RESULTS = {  # of fused operators, with MXNet's names; its `var` of a normalization is 1 / sqrt(variance + eps)
    OPERATOR: ('output',),
    CONVOLUTION_OPERATOR: ('output',),
    NORMALIZATION_OPERATOR: ('output', 'mean', 'variance'),
    POOLING_OPERATOR: ('output',),
}
_processor: Dict[str, Callable[[], Any]] = {}  # 'instruction_sets': the function that `register` is given
SWITCH = 'BMX_MELIUS_FUSION'  # environment variable: with 0, MXNet's operators are executed


def register(instruction_sets):
    """Let MXNet execute the graphs of hybridized blocks with fused operators from now on, if they have been compiled.

    `instruction_sets()` returns the chosen instruction set and all that are available, the best one last.
    """
    _processor['instruction_sets'] = instruction_sets
    available = OPERATOR in mx.operator.get_all_registered_operators() and not mx.runtime.Features().is_enabled('CUDA')
    if available and os.environ.get(SWITCH) != '0' and not isinstance(mx.nd.CachedOp, _FusedCachedOp):
        mx.nd.CachedOp = _FusedCachedOp(mx.nd.CachedOp)


class _FusedCachedOp:
    """Replaces MXNet's class of executable graphs: makes objects that do the same, with fused operators."""

    def __init__(self, cached_op):
        self._cached_op = cached_op

    def __call__(self, symbol, flags=()):
        executed = fused(symbol)
        if executed is symbol:
            return self._cached_op(symbol, flags)
        fused_flags = flags
        if 'inline_limit' not in dict(flags):
            # MXNet takes graphs of one or two operators apart, and has no gradient then if an input is an output, too.
            fused_flags = (*flags, ('inline_limit', '0'))
        trained = with_fused_normalization(executed)
        return _Executable(
            stock=lambda: self._cached_op(symbol, flags),
            inference=lambda: self._cached_op(executed, fused_flags),
            training=None if trained is executed else lambda: self._cached_op(trained, fused_flags),
        )


class _Executable:
    """Executable graphs of a block, which are made when they are first called.

    A graph does not know that a network was cast to another type since, and an operator not whether it is executed in training.

    Parameters
    ----------
    stock, inference, training : callable
        Make the graph for inputs of other types than float32, for inference, and for training (None: that for inference). Gluon discards
        executable graphs when it casts a network.
    """

    def __init__(self, stock, inference, training):
        self._makers = {'stock': stock, 'inference': inference, 'training': training}
        self._is_float32, self._hook, self._graphs = None, None, {}

    def __call__(self, *inputs, **arguments):
        if self._is_float32 is None:
            self._is_float32 = all(array.dtype == np.float32 for array in inputs)
        name = 'stock' if not self._is_float32 else 'training' if self._makers['training'] and mx.autograd.is_training() else 'inference'
        if name not in self._graphs:
            self._graphs[name] = self._makers[name]()
            if self._hook:
                self._graphs[name]._register_op_hook(*self._hook)
        return self._graphs[name](*inputs, **arguments)

    def _register_op_hook(self, callback, *monitor_all):
        self._hook = with_names_of_results(callback), *monitor_all
        for graph in self._graphs.values():
            graph._register_op_hook(*self._hook)


def with_names_of_results(callback):
    """Return the callback of a monitor for executed graphs, which is given the names in `RESULTS`: MXNet numbers such results only.

    So names that a monitor selects, such as those that end with ``_output``, are those of MXNet's operators.
    """

    def renamed(name, operator, array):
        node, _, number = name.decode().rpartition('_')
        results = RESULTS.get(operator.decode(), ())
        known = number.isdigit() and int(number) < len(results)  # an input of the operator has no number alone
        return callback(f'{node}_{results[int(number)]}'.encode() if known else name, operator, array)

    return renamed


def fused(symbol):
    """Return a symbol with the same inputs, values and gradients that uses `OPERATOR` for binary activations in float32."""
    text = symbol.tojson()
    if key(ROLE) not in text:  # of the many small graphs of other parts of a program, none is worth parsing
        return symbol
    graph = SymbolJson.loads(text)
    if any(node['attrs'].get(name, 'float32') not in ('float32', '0') for node in graph.nodes for name in ('dtype', '__dtype__')):
        return symbol
    readers = collections.defaultdict(dict)  # map -> first nodes of the activations that read it -> last node and attributes, if they match
    for index, node in enumerate(graph.nodes):
        facts = read_marks(node['attrs'])
        if facts.get('role') == ACTIVATION_INPUT:
            readers[tuple(node['inputs'][0])][index] = None
        elif facts.get('role') == ACTIVATION and facts['method'] in METHODS and facts['threshold'] != 'None':
            x = _match(graph, index, _pattern(facts['method'], float(facts['threshold']), facts['encoding']))
            first = graph.nodes[x[0]] if x else node
            if read_marks(first['attrs']).get('role') == ACTIVATION_INPUT:
                readers[tuple(first['inputs'][0])][x[0]] = index, {name: facts[name] for name in ('method', 'threshold', 'encoding')}
    moved = {}
    for activations in readers.values():
        if None not in activations.values():
            _fuse(graph, activations, moved)
    if not moved:
        return symbol
    for node in graph.nodes:
        node['inputs'] = [moved.get(entry[0], entry) for entry in node['inputs']]
    graph.heads = [moved.get(entry[0], entry) for entry in graph.heads]
    graph.drop_unused()
    if _kernels():
        _fuse_convolutions(graph)
        graph.drop_unused()
        graph.sort()
    if _kernels() == 'avx2':
        _replace_pooling(graph)
    result = mx.sym.load_json(graph.text())
    assert result.list_inputs() == symbol.list_inputs()  # executable graphs get them by position
    return result


def _fuse(graph, activations, moved):
    """Replace the activations of one map, of which MXNet would compute equal ones once, by one operator if all are equal.

    Where a value has many readers, MXNet adds to its gradient in place. Extension operators cannot add, they only write. So this one must
    be the only reader of its value, the map in plain layout, and equal reshapes of one map are one value to MXNet.
    """
    reshape, (first, attributes) = next(iter(activations.items()))
    if all(others == attributes for _, others in activations.values()):
        graph.replace(first, OPERATOR, [[reshape, 0, 0]], attributes)
        moved.update({index: [first, 0, 0] for index, _ in activations.values()})


@functools.lru_cache(maxsize=None)
def _kernels():
    """Return the best of `KERNELS` up to the chosen instruction set, or None if there is none or `CONVOLUTION_OPERATOR` is not compiled."""
    chosen, available = _processor['instruction_sets']()
    sets = available[: available.index(chosen) + 1] if chosen else ()
    if CONVOLUTION_OPERATOR not in mx.operator.get_all_registered_operators():
        return None
    return next((name for name in KERNELS if name in sets), None)


def _fuse_convolutions(graph):
    """Replace fused signs, and the binary convolutions that read them, by one operator each, where each sign has one reader."""
    readers = _readers(graph)
    found = collections.defaultdict(list)  # latent weights -> convolutions
    for index, node in enumerate(graph.nodes):
        if read_marks(node['attrs']).get('role') == CONVOLUTION and _is_plain(node['attrs']):
            sign, weight = (graph.nodes[entry[0]] for entry in node['inputs'][:2])
            scale = _scale_of(weight)
            latent = _latent_weight(graph, node['inputs'][1] if scale == '1' else weight['inputs'][0])
            if sign['op'] == OPERATOR and sign['attrs']['encoding'] == 'bit' and readers[node['inputs'][0][0]] == 1 and latent:
                found[latent[0]].append((index, sign, scale))
    for convolutions in found.values():
        if len(convolutions) <= MOST_READERS:
            for index, sign, scale in convolutions:
                _fuse_convolution(graph, index, sign, scale)


def _is_plain(attributes):
    """Return whether a Convolution has two spatial axes, one group, and windows that are not too large."""
    kernel = integers(attributes['kernel'])
    if len(kernel) != 2 or attributes.get('num_group', '1') != '1':
        return False
    return all((size - 1) * dilation <= MOST_REACH for size, dilation in zip(kernel, _geometry(attributes)['dilate']))


def _geometry(attributes):
    """Return stride, padding and dilation of a Convolution, tuples of integers."""
    return {name: integers(attributes.get(name, '')) or default for name, default in GEOMETRY.items()}


def _replace_pooling(graph):
    """Replace maximum pooling of maps that nothing else reads by `POOLING_OPERATOR`: see csrc/api/mxnet_pooling.cc."""
    readers = _readers(graph)
    for index, node in enumerate(graph.nodes):
        attributes = node['attrs']
        windows = {name: integers(attributes.get(name, '')) or default for name, default in WINDOWS.items()}
        plain = all(attributes.get(name, default) in (default, 'None') for name, default in PLAIN_POOLING.items())
        if (
            node['op'] == 'Pooling'
            and plain
            and all(len(numbers) == 2 for numbers in windows.values())
            and all(pad < size for pad, size in zip(windows['pad'], windows['kernel']))
            and graph.nodes[node['inputs'][0][0]]['op'] != VARIABLE
            and readers[node['inputs'][0][0]] == 1
        ):
            text = {name: ','.join(map(str, numbers)) for name, numbers in windows.items()}
            graph.replace(index, POOLING_OPERATOR, node['inputs'], text)


def with_fused_normalization(symbol):
    """Return a symbol with the same inputs, values and gradients that uses `NORMALIZATION_OPERATOR`, for training only.

    It updates the moving statistics in the forward pass, as PyTorch does, MXNet's operator in the backward pass. So they change, too, where
    a backward pass does not reach it: in ``autograd.train_mode()`` without a gradient, or before layers that are the first ones to learn
    (`fit` with ``freeze`` has global statistics there). A backward pass with ``train_mode=False`` is that of the training.
    """
    if not _kernels():
        return symbol
    graph = SymbolJson.of(symbol)
    readers = _readers(graph)
    found = [index for index, node in enumerate(graph.nodes) if _is_plain_normalization(graph, node, readers)]
    sums = _sums_of_two(graph, readers)
    for index in found:
        node = graph.nodes[index]
        data, gamma, beta, *states = node['inputs']
        # the gradients of variables may have to be added, by these reshapes
        gamma, beta = (
            [graph.add('Reshape', f'{node["name"]}_{name}_plain', [entry], {'shape': '(-2,)'}), 0, 0]
            for name, entry in (('gamma', gamma), ('beta', beta))
        )
        attributes = {name: node['attrs'].get(name, default) for name, default in NORMALIZATION.items()}
        attributes.update(kernels=_kernels(), addend='none')
        replaced, inputs = index, [data, gamma, beta, *states]
        if index in sums and graph.nodes[sums[index]]['op'] == SUM_OPERATOR:  # not replaced with the other operand
            replaced = sums[index]
            first, last = graph.nodes[replaced]['inputs']
            if first[0] == index:
                attributes['addend'], inputs = 'last', [*inputs, last]
            else:
                attributes['addend'], inputs = 'first', [first, *inputs]
        graph.replace(replaced, NORMALIZATION_OPERATOR, inputs, attributes)
    if not found:
        return symbol
    graph.drop_unused()
    graph.sort()
    result = mx.sym.load_json(graph.text())
    assert result.list_inputs() == symbol.list_inputs() and result.list_auxiliary_states() == symbol.list_auxiliary_states()
    return result


def _sums_of_two(graph, readers):
    """Return for each node whose only reader adds it to another value, of which few are the readers, the index of the sum."""
    found = {}
    for index, node in enumerate(graph.nodes):
        if node['op'] == SUM_OPERATOR:
            (first, *_), (last, *_) = node['inputs']
            for value, addend in ((first, last), (last, first)):
                if readers[value] == 1 and readers[addend] <= MOST_READERS and graph.nodes[addend]['op'] != VARIABLE:
                    found[value] = index
    return found


def _is_plain_normalization(graph, node, readers):
    if node['op'] != 'BatchNorm':
        return False
    data = node['inputs'][0][0]
    settings = {name: node['attrs'].get(name, default) for name, default in PLAIN_NORMALIZATION.items()}
    is_plain = settings == {**PLAIN_NORMALIZATION, 'fix_gamma': 'False'}
    return is_plain and graph.nodes[data]['op'] != VARIABLE and readers[data] <= MOST_READERS


def _readers(graph):
    """Return how often each node is read."""
    readers = collections.Counter(entry[0] for node in graph.nodes for entry in node['inputs'])
    readers.update(entry[0] for entry in graph.heads)
    return readers


def _scale_of(weight):
    """Return the factor of the signs of a weight, a str: 2 where the layer returns products of signs, else 1."""
    return '2' if weight['op'] == '_mul_scalar' and float(weight['attrs']['scalar']) == 2 else '1'


def _latent_weight(graph, entry):
    """Return the entry whose sign a quantized weight is, with any gradient: sign + (surrogate - BlockGrad(surrogate)); else None."""

    def inputs(entry, operator):
        node = graph.nodes[entry[0]]
        return node['inputs'] if node['op'] == operator else [None, None]

    rounded, zero = inputs(entry, 'elemwise_add')
    if rounded is None:
        return None
    surrogate, blocked = inputs(zero, 'elemwise_sub')
    value, *_ = inputs(rounded, 'BlockGrad')
    if surrogate is None or value is None or inputs(blocked, 'BlockGrad')[0] != surrogate:
        return None
    return _match(graph, value[0], _sign_pattern())


def _fuse_convolution(graph, index, sign, scale):
    node = graph.nodes[index]
    attributes = {name: ','.join(map(str, numbers)) for name, numbers in _geometry(node['attrs']).items()}
    attributes.update({name: sign['attrs'][name] for name in ('method', 'threshold')}, scale=scale, kernels=_kernels())
    latent = _counted_weight(graph, node)
    if latent:
        # The gradient of a variable may have to be added, by this reshape.
        weight = graph.add('Reshape', f'{node["name"]}_latent', [latent], {'shape': '(-2,)'})
        graph.replace(index, CONVOLUTION_OPERATOR, [sign['inputs'][0], [weight, 0, 0]], {**attributes, 'no_bias': '1', 'counts': '1'})
        return
    attributes.update(no_bias=str(int(truth(node['attrs'].get('no_bias', 'False')))), counts='0')
    graph.replace(index, CONVOLUTION_OPERATOR, [sign['inputs'][0], *node['inputs'][1:]], attributes)


def _counted_weight(graph, node):
    """Return the entry of the latent weight if a convolution returns (h + n) / 2 with weights that are never cancelled, else None."""
    if len(node['inputs']) != 3:
        return None
    weight, constant = _counting_patterns(int(node['attrs']['num_filter']))
    latent = _match(graph, node['inputs'][1][0], weight)
    return latent if latent and _match(graph, node['inputs'][2][0], constant) == latent else None


@functools.lru_cache(maxsize=None)
def _counting_patterns(filters):
    """Return the patterns of the weight and of the bias of a convolution that returns (h + n) / 2, for bits."""
    from .binarization import Binarization
    from .quantizers import quantize

    settings = Binarization(encoding='bit')
    quantized = quantize(mx.sym, mx.sym.var('x'), settings.quantization, settings.bits)
    parts = settings.weight_and_constant(mx.sym, quantized, filters, settings.pad_value, True)
    return tuple(map(SymbolJson.of, parts))


@functools.lru_cache(maxsize=None)
def _sign_pattern():
    from .quantizers import sign

    return SymbolJson.of(sign(mx.sym, mx.sym.var('x')))


@functools.lru_cache(maxsize=None)
def _pattern(method, threshold, encoding):
    from .quantizers import quantize_in_parts  # imports MXNet, and with it this module

    terms = quantize_in_parts(mx.sym, mx.sym.var('x'), method, 1, threshold, encoding)
    return SymbolJson.of(terms[0] + terms[1])


def _match(graph, index, pattern):
    """Return the entry of `graph` in the place of the only variable of `pattern` if node `index` computes its result, else None."""
    entries = {}

    def same(entry, expected):
        node, like = graph.nodes[entry[0]], pattern.nodes[expected[0]]
        if like['op'] == VARIABLE:
            return entries.setdefault(like['name'], entry) == entry
        return (
            (entry[1], node['op'], _arguments(node)) == (expected[1], like['op'], _arguments(like))
            and len(node['inputs']) == len(like['inputs'])
            and all(map(same, node['inputs'], like['inputs']))
        )

    return next(iter(entries.values())) if same([index, 0, 0], pattern.heads[0]) else None


def _arguments(node):
    arguments = {name: value for name, value in node['attrs'].items() if not name.startswith('__')}
    return {**arguments, 'scalar': float(arguments['scalar'])} if 'scalar' in arguments else arguments
