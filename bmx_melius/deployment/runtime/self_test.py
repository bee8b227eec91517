"""Self-test of the engine on this processor: the layers of the model zoo, with every instruction set, against the interpreter.

``zoo_layers.json`` lists the different convolutions and dense layers of all networks of the zoo for images of 224 x 224, binary and float;
``tools/zoo_layers.py`` writes it. Float layers are also tested as layers of 8-bit integers, which ``convert --int8`` makes of them. All
numbers in the test of binary and float layers are small integers, so that the sums of float layers are exact as well, and the engine must
give the same bits as the interpreter. Each instruction set runs in a separate process: it is chosen when the engine is
loaded, and a fault that ends the process is a result like others.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import zlib
from typing import List, Optional, Sequence, Tuple

import numpy as np

from ..program import reference
from ..program.operation_table import MAX_BYTE, MAX_INT16, OFFSET_SHIFT
from ..program.operations import OPERATIONS, REAL_KIND, SIDES, Operation, Value
from ..program.program import Program
from . import engine
from .engine import Runner

LAYERS_FILE = pathlib.Path(__file__).with_name('zoo_layers.json')
COLUMNS = (
    *('channels', 'height', 'width', 'out_channels', 'kernel_h', 'kernel_w', 'stride_h', 'stride_w'),
    *('dilation_h', 'dilation_w', 'pad_h', 'pad_w', 'groups'),
)
KINDS = {'binary': 'binary', 'float': 'float', 'int8': 'float'}  # kind of a layer -> name of its list in `LAYERS_FILE`
_OTHER_PRODUCTS = ('avx512', 'amx')  # instruction sets whose float layers have other kernels in other precisions than 'exact'


@dataclasses.dataclass(frozen=True)
class ZooLayer:
    """Shape of a convolution, or of a dense layer: a convolution of 1 x 1 on a flat value.

    Attributes
    ----------
    kind : str
        ``'binary'``, ``'float'`` or ``'int8'``.
    numbers : tuple of int
        One for each of `COLUMNS`: the size of the input, and the attributes of the layer.
    """

    kind: str
    numbers: Tuple[int, ...]

    @property
    def attributes(self):
        """The numbers by their names in `COLUMNS`."""
        return dict(zip(COLUMNS, self.numbers))

    def cropped(self, rows):
        """Return the layer on a map of which only as many rows remain as `rows` rows of the output need."""
        a = self.attributes
        needed = (rows - 1) * a['stride_h'] + (a['kernel_h'] - 1) * a['dilation_h'] + 1 - a['pad_h']
        return dataclasses.replace(self, numbers=tuple({**a, 'height': min(a['height'], max(1, needed))}.values()))

    def __str__(self):
        a = self.attributes
        groups = f', {a["groups"]} groups' if a['groups'] > 1 else ''
        window = f'{a["kernel_h"]} x {a["kernel_w"]}, stride {a["stride_h"]}, dilation {a["dilation_h"]}'
        return f'{self.kind} layer of {a["channels"]} to {a["out_channels"]} channels on {a["height"]} x {a["width"]}, {window}{groups}'


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of an instruction set.

    Attributes
    ----------
    instruction_set : str
    binary_layers, float_layers, int8_layers : int
        Number of layers computed.
    differences : tuple of str
        Descriptions of the layers whose results differ from the interpreter's.
    failure : str or None
        Reason why the process ended early.
    """

    instruction_set: str
    binary_layers: int
    float_layers: int
    int8_layers: int
    differences: Tuple[str, ...]
    failure: Optional[str]

    @property
    def passed(self):
        """Whether all layers were computed and are equal."""
        return not self.differences and self.failure is None


def zoo_layers(rows: Optional[int] = None) -> List[ZooLayer]:
    """Return the layers of the zoo, different from each other; with `rows` on maps of which only so many rows of the output remain."""
    stored = json.loads(LAYERS_FILE.read_text())
    layers = [ZooLayer(kind, tuple(numbers)) for kind, stored_kind in KINDS.items() for numbers in stored[stored_kind]]
    return list(dict.fromkeys(layer if rows is None else layer.cropped(rows) for layer in layers))


def run_self_test(layers: Sequence[ZooLayer]) -> List[Result]:
    """Compute layers with all available instruction sets, and compare them with the interpreter.

    Returns
    -------
    list of Result

    Raises
    ------
    UserError
        If the engine is not available.
    """
    engine.require_engine()
    _, names = engine.instruction_sets()
    processes = {name: _start(name, layers) for name in names}  # they compute while this process interprets
    expected = [_expected(layer) for layer in layers]
    return [_result(name, process, layers, expected) for name, process in processes.items()]


def _start(instruction_set, layers):
    """Start a process that prints a line of JSON for each layer: the digests of the results of each of its programs."""
    paths = [str(engine.FOLDER.parent), *filter(None, [os.environ.get('PYTHONPATH')])]
    changed = {'BMX_MELIUS_ISA': instruction_set, 'PYTHONPATH': os.pathsep.join(paths)}
    pipes = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, '-m', __name__], text=True, env={**os.environ, **changed}, **pipes)
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which `_result` reports
        json.dump([dataclasses.astuple(layer) for layer in layers], process.stdin)
        process.stdin.close()
    process.stdin = None  # otherwise `communicate` would close it again
    return process


def _result(instruction_set, process, layers, expected):
    """Wait for a process and return the `Result` of its instruction set."""
    output, errors = process.communicate()
    failure = None
    if process.returncode:
        signal_number = -process.returncode
        last = (errors.strip().splitlines() or ['no message'])[-1]
        failure = f'ended by {signal.Signals(signal_number).name}' if signal_number > 0 else last
    lines = [json.loads(line) for line in output.splitlines()]
    if failure and len(lines) < len(layers):
        failure += f' at the {layers[len(lines)]}'
    computed = collections.Counter(layer.kind for layer in layers[: len(lines)])
    return Result(
        instruction_set=instruction_set,
        **{f'{kind}_layers': computed[kind] for kind in KINDS},
        differences=tuple(
            str(layer)
            for layer, wanted, found in zip(layers, expected, lines)
            if any(set(digests) != {digest} for digest, digests in zip(wanted, found))
        ),
        failure=failure,
    )


def _digest(array):
    return hashlib.sha256(np.ascontiguousarray(array, '<f4').data).hexdigest()


def _example(layer):
    """Return the operations of a layer with what precedes and follows it, and its input."""
    a, random = layer.attributes, np.random.RandomState(zlib.crc32(repr(layer.numbers).encode()))
    attributes = {name: a[name] for name in COLUMNS if name in OPERATIONS['conv'].attributes}
    attributes.update(dict.fromkeys(SIDES['h'], a['pad_h']), **dict.fromkeys(SIDES['w'], a['pad_w']))
    shape = (a['out_channels'], a['channels'] // a['groups'], a['kernel_h'], a['kernel_w'])
    flat = (a['height'], a['width']) == (1, 1)
    x = _random_bytes(random, 1, a['channels'], *([] if flat else [a['height'], a['width']]))
    make = {'binary': _binary_operations, 'float': _float_operations, 'int8': _int8_operations}[layer.kind]
    # few random bits each: the generator would take most of the time of the test
    return make(attributes, shape, random, a['channels']), (x if layer.kind == 'int8' else x % 4 - np.float32(2)).astype(np.float32)


def _random_bytes(random, *shape):
    return np.frombuffer(random.bytes(math.prod(shape)), np.uint8).reshape(shape)


def _float_operations(attributes, shape, random, channels):
    weight = (_random_bytes(random, *shape) % 4).astype(np.float32) - 1
    return [Operation('conv', (0,), {**attributes, 'has_bias': 0, 'half': 0}, {'weight': weight})]


def _binary_operations(attributes, shape, random, channels):
    """Return operations that end by turning binary sums into bits."""
    filters, inputs, *kernel = shape
    weight = _random_bytes(random, filters, *kernel, inputs) % 4 > 1

    def threshold(source, size):
        arrays = {'threshold': random.randint(-8, 9, size).astype(np.float32), 'flip': random.randint(0, 2, size).astype(bool)}
        return Operation('threshold', (source,), {}, arrays)

    signs = Operation('threshold', (0,), {}, {'threshold': np.zeros(channels, np.float32), 'flip': np.zeros(channels, bool)})
    convolution = Operation('binary_conv', (1,), {**attributes, 'pad_value': -1, 'offset': 0, 'planes': 1}, {'weight': weight})
    return [signs, convolution, threshold(2, filters), Operation('expand', (3,), {'low': -1})]


def _int8_operations(attributes, shape, random, channels):
    """Return the layer between two of a weight for each channel: as in networks, it reads and stores bytes in an order of its own."""

    def convolution(source, of_layer, weight, limits):
        filters, inputs = len(weight), weight[0].size
        low, high = limits
        shift = 23 if high == MAX_BYTE else 16  # as conversion chooses them
        factor = random.uniform(0.5, 1, filters) * (high - low) / (4 * 70 * 140 * math.sqrt(inputs))  # of sums
        arrays = {
            'weight': weight,
            'pad': random.randint(0, MAX_BYTE + 1, weight.shape[1] * of_layer['groups']).astype(np.int32),
            'multiplier': np.rint(factor * random.choice([-1, 1], filters) * 2**shift).astype(np.int32),
            'offset': np.rint(random.uniform(0.3, 0.7, filters) * high * 2**OFFSET_SHIFT).astype(np.int32),
        }
        rescaling = {'shift': shift, 'result_min': low, 'result_max': high}
        return Operation('int8_conv', (source,), {**of_layer, **rescaling}, arrays)

    def of_each_channel(count):
        window = {name: 1 for name in attributes if name.startswith(('kernel', 'stride', 'dilation'))}
        return {**dict.fromkeys(attributes, 0), **window, 'out_channels': count, 'groups': count}

    def weights(*shape):
        return _random_bytes(random, *shape).view(np.int8)

    return [
        convolution(0, of_each_channel(channels), weights(channels, 1, 1, 1), (0, MAX_BYTE)),
        convolution(1, attributes, weights(*shape), (0, MAX_BYTE)),
        convolution(2, of_each_channel(shape[0]), weights(shape[0], 1, 1, 1), (-MAX_INT16, MAX_INT16)),
    ]


def _expected(layer):
    """Return the digest of the result of each program of a layer: its sums, and what the last operation makes of them."""
    operations, x = _example(layer)
    values = [x]
    for operation in operations:
        values.append(reference.apply(operation, [values[source] for source in operation.inputs]))
    return [_digest(values[number]) for number in _outputs(layer)]


def _outputs(layer):
    """Return the numbers of the values that are compared.

    The engine keeps binary sums that only become signs as integers of 16 bits, and results that an 8-bit layer reads as bytes.
    """
    return {'binary': (2, 4), 'float': (1,), 'int8': (2, 3)}[layer.kind]


def _computed(layer, precisions):
    """Return for each number in `_outputs` the digests of the engine's results."""
    operations, x = _example(layer)
    height, width = (1, 1) if x.ndim == 2 else x.shape[2:]
    value = Value(REAL_KIND, x.shape[1], height, width, x.ndim == 2)
    found = []
    for number in _outputs(layer):
        program = Program([value], operations[:number], [number])
        words = program.to_words()
        found.append([_digest(Runner(program, words, precision).run([x])[0]) for precision in precisions])
    return found


def main():
    """Print the digests of the layers in standard input, computed with the instruction set in use."""
    exact_only = engine.instruction_sets()[0] not in _OTHER_PRODUCTS
    for kind, numbers in json.load(sys.stdin):
        precisions = ['exact'] if kind != 'float' or exact_only else engine.PRECISIONS
        print(json.dumps(_computed(ZooLayer(kind, tuple(numbers)), precisions)), flush=True)


if __name__ == '__main__':
    main()
