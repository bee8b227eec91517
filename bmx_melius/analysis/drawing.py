"""Drawings of networks: layers, poolings and joins as boxes, other operators as labels of the arrows between them."""

import os
from typing import TYPE_CHECKING, Union

from ..errors import UserError
from ..files.io import replacing, require_suffix
from ..graph.nodes import Graph
from ..graph.operations import Concatenation, Dense, Elementwise, GlobalPooling, Pooling, TransposedConvolution
from ..nn import marks
from . import counting

if TYPE_CHECKING:
    import graphviz

SOURCE_SUFFIXES = ('.gv', '.dot')
SUFFIXES = ('.pdf', '.png', '.svg', *SOURCE_SUFFIXES)

_COLOURS = {
    counting.BINARY: '#a9cce8',
    counting.QUANTIZED: '#cfe3c8',
    counting.FIRST_CONVOLUTION: '#f2b48c',
    counting.LARGE_CONVOLUTION: '#f7cfa8',
    counting.POINTWISE_CONVOLUTION: '#fbe6b8',
    counting.PRODUCT: '#e8e0c9',
    counting.DENSE: '#e3d0ea',
    counting.OUTPUT: '#e3d0ea',
}
_NAMES = {counting.BINARY: 'binary ', counting.QUANTIZED: '{bits}-bit '}
_WORDS = {  # by operators of MXNet, because some of these have no class
    'BatchNorm': 'BN',
    'BatchNorm_v1': 'BN',
    '_contrib_SyncBatchNorm': 'BN',
    'LayerNorm': 'LN',
    'Dropout': 'dropout',
    'softmax': 'softmax',
    'SoftmaxOutput': 'softmax',
    'slice_axis': 'slice',
    'slice': 'slice',
    'SwapAxis': 'swap axes',
    'transpose': 'transpose',
    'Flatten': 'flatten',
    'clip': 'clip',
    'mean': 'mean',
    '_contrib_AdaptiveAvgPooling2D': 'average',
}
_MARKED_WORDS = {marks.SCALE: 'scale', marks.SHIFT: 'shift', marks.PRELU: 'prelu', marks.MEAN: 'mean'}
_JOINS = {'add': '+', 'multiply': '\u00d7', 'subtract': '\u2212'}  # kinds of `Elementwise`


def save(drawing: 'graphviz.Digraph', path: Union[str, os.PathLike]) -> None:
    """Write a drawing as a picture (.pdf, .png, .svg) or as graphviz source (.gv, .dot), atomically.

    Raises
    ------
    OSError
        If the file cannot be written.
    UserError
        For another suffix, or if the program `dot` of graphviz, which renders pictures, is not installed.
    """
    require_suffix(path, SUFFIXES)
    suffix = os.path.splitext(path)[1]
    if suffix in SOURCE_SUFFIXES:
        content = drawing.source.encode()
    else:
        import graphviz

        try:
            content = drawing.pipe(format=suffix[1:])
        except graphviz.ExecutableNotFound as error:
            raise UserError(
                f'drawing {path} needs the program `dot`: install graphviz (apt-get install graphviz, brew install graphviz), '
                f'or give a name that ends with {SOURCE_SUFFIXES[0]} to write the source without it'
            ) from error
    with replacing(path) as temporary, open(temporary, 'wb') as file:
        file.write(content)


def draw(graph: Graph, title: str = '') -> 'graphviz.Digraph':
    """Draw a `Graph`.

    Boxes are layers that multiply by weights (coloured by kind, with output size and OPs), poolings, and nodes that join paths. Other
    operators, including the arithmetic of a quantizer, are labels of arrows; those that only rearrange values are not shown.

    Returns
    -------
    graphviz.Digraph
    """
    import graphviz  # here, because tables are printed without it

    drawing = graphviz.Digraph(
        graph_attr={
            'label': title,
            'labelloc': 't',
            'fontname': 'Helvetica',
            'fontsize': '20',
            'nodesep': '0.3',
            'ranksep': '0.3',
        },
        node_attr={
            'shape': 'box',
            'style': 'rounded,filled',
            'fillcolor': '#eeeeee',
            'fontname': 'Helvetica',
            'fontsize': '11',
            'margin': '0.12,0.05',
            'height': '0.3',
        },
        edge_attr={'fontname': 'Helvetica', 'fontsize': '9', 'fontcolor': '#555555', 'arrowsize': '0.6'},
    )
    layers = {node: layer for node, layer in counting.count_layers(graph).items() if layer.macs}
    origin = {}  # node that depends on data -> (the last box before it, the labels since then)
    for node in graph.nodes:
        if not node.depends_on_data:
            continue
        arrivals = [origin[source] for source in node.sources if source in origin]
        if node.operator is not None and not arrivals:
            continue  # it does not depend on the values of data
        if _is_box(node, arrivals, layers):
            _add_box(drawing, node, layers.get(node))
            for box, words in dict.fromkeys(arrivals):
                # long arrows are kept straight, otherwise long networks drift to the side
                drawing.edge(str(box.index), str(node.index), label=_beside(words), weight=str(node.index - box.index))
            origin[node] = (node, ())
        else:
            box, words = max(arrivals, key=lambda arrival: len(arrival[1]))
            word = _word(node)
            origin[node] = (box, words + (word,) if word and words[-1:] != (word,) else words)
    for node in graph.outputs:
        if node in origin:
            box, words = origin[node]
            drawing.node(f'output{node.index}', f'output\n{_size(node)}', fillcolor='white')
            drawing.edge(str(box.index), f'output{node.index}', label=_beside(words))
    return drawing


def _is_box(node, arrivals, layers):
    paths_meet = len({box for box, _ in arrivals}) > 1
    return node in layers or paths_meet or node.operator is None or isinstance(node.operation, (Pooling, GlobalPooling, Concatenation))


def _add_box(drawing, node, layer):
    if node.operator is None:
        drawing.node(str(node.index), f'{node.name}\n{_size(node)}', fillcolor='white')
    elif layer is not None:
        name = _NAMES.get(layer.kind, '').format(bits=layer.bits) + _describe(node)
        operations = f'\n{_short(layer.ops)} OPs' if layer.ops else ''
        drawing.node(str(node.index), f'{name}\n{_size(node)}{operations}', fillcolor=_COLOURS[layer.kind])
    elif isinstance(node.operation, GlobalPooling):
        drawing.node(str(node.index), f'global {node.operation.kind} pool\n{_size(node)}')
    elif isinstance(node.operation, Pooling):
        drawing.node(str(node.index), f'{node.operation.kind} pool {_window(node.operation.window)}\n{_size(node)}')
    else:
        drawing.node(str(node.index), f'{_join(node)}\n{_size(node)}', fillcolor='white', color='#999999', height='0.2')


def _join(node):
    if isinstance(node.operation, Concatenation):
        return 'concat'
    return _JOINS.get(node.operation.kind, node.operator) if isinstance(node.operation, Elementwise) else node.operator


def _describe(node):
    if isinstance(node.operation, Dense):
        return 'dense'
    name = 'transposed convolution' if isinstance(node.operation, TransposedConvolution) else 'convolution'
    groups = node.operation.groups
    return f'{name} {_window(node.operation.window)}' + (f', {groups} groups' if groups > 1 else '')


def _window(window):
    """Return the kernel size, with strides above 1 after a slash: '3 x 3', '3 x 3 / 2'."""
    strides = set(window.strides) - {1}
    return ' \u00d7 '.join(map(str, window.kernel)) + (f' / {max(strides)}' if strides else '')


def _word(node):
    if node.marks.get(marks.ROLE) == marks.ACTIVATION:
        return node.marks['method'] if counting.marked_bits(node) < counting.FLOAT_BITS else None
    if node.marks.get(marks.ROLE) in _MARKED_WORDS:
        return _MARKED_WORDS[node.marks[marks.ROLE]]
    if node.operator in ('Activation', 'LeakyReLU'):
        return node.operation.kind
    if node.operator in ('slice_axis', 'slice') and node.shape == node.inputs[0].shape:
        return None  # selects all elements
    return _WORDS.get(node.operator)


def _beside(words):
    return ''.join(f'  {word}\\l' for word in words)  # left-aligned, indented from the arrow


def _size(node):
    return ' \u00d7 '.join(map(str, node.shape[1:])) or '1'


def _short(number):
    for limit, unit in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if number >= limit:
            return f'{number / limit:.3g} {unit}'
    return f'{number:.3g}'
