#!/usr/bin/env python
"""Write the layers of all networks of the model zoo to bmx_melius/deployment/runtime/zoo_layers.json, for the self-test of the engine.

Run it after adding a network::

    python tools/zoo_layers.py
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bmx_melius.analysis.counting import count_layers  # noqa: E402
from bmx_melius.deployment.runtime.self_test import COLUMNS, LAYERS_FILE, ZooLayer  # noqa: E402
from bmx_melius.files.io import replacing  # noqa: E402
from bmx_melius.graph.operations import Convolution, Dense, Window  # noqa: E402
from bmx_melius.graph.tracing import read_graph  # noqa: E402
from model_zoo import get_model, get_model_list  # noqa: E402
from model_zoo.registry import find  # noqa: E402


def layers_of(graph):
    """Yield the `ZooLayer` of each convolution and dense layer of a network, 1-D and 3-D maps excluded.

    Activations of k bits are 2^k - 1 bits in packed networks, each of which counts as a channel.
    """
    for node, layer in count_layers(graph).items():
        if not isinstance(node.operation, (Convolution, Dense)) or len(node.inputs[0].shape) not in (2, 4):
            continue
        kind = 'binary' if layer.bits < 32 and layer.activation_bits <= 2 else 'float'
        planes = 2**layer.activation_bits - 1 if kind == 'binary' else 1
        channels, *size = node.inputs[0].shape[1:]
        if isinstance(node.operation, Dense):
            for length in size:
                channels *= length
            size = (1, 1)
        convolution = node.operation if isinstance(node.operation, Convolution) else Convolution(Window((1, 1)))
        window, pads = convolution.window, [begin for begin, _ in convolution.window.pads]
        numbers = *window.kernel, *window.strides, *window.dilations, *pads, convolution.groups
        yield ZooLayer(kind, (channels * planes, *size, node.shape[1], *numbers))


def zoo_layers():
    """Return the different layers of all networks of the registry as the content of the file, a dict; those with weights are small."""
    networks = [find(name) for name in get_model_list() if find(name).stored is None]
    graphs = (read_graph(get_model(network.name), (1, *network.input_shape)) for network in networks)
    found = {layer for graph in graphs for layer in layers_of(graph)}
    return {
        'columns': list(COLUMNS),
        **{kind: sorted(list(layer.numbers) for layer in found if layer.kind == kind) for kind in ('binary', 'float')},
    }


def to_text(content):
    """Return the content as JSON with a line for each layer."""
    parts = [f' "columns": {json.dumps(content["columns"])}']
    parts += [f' "{kind}": [\n' + ',\n'.join(f'  {json.dumps(row)}' for row in content[kind]) + '\n ]' for kind in ('binary', 'float')]
    return '{\n' + ',\n'.join(parts) + '\n}\n'


if __name__ == '__main__':
    with replacing(LAYERS_FILE) as path:
        pathlib.Path(path).write_text(to_text(zoo_layers()))
