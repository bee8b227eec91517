"""Time of layers of few levels on both sides: as binary convolutions of bit planes, as sums of integers, and with float32.

    python benchmarks/level_layers.py

Each layer is a program that compares a map with thresholds and multiplies what it finds: 3x3 layers of ResNet-18 for one image, one thread.
All forms of a shape run in turns. Printed are the least time of each in milliseconds, and its ratio to the sums of integers of 4 bits.
"""

import argparse
import time

import numpy as np

from bmx_melius.deployment.program.operations import PADDING, REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime.engine import Runner, instruction_sets

SHAPES = [(64, 56), (128, 28), (256, 14), (512, 7)]  # channels, size
WINDOW = {'kernel_h': 3, 'kernel_w': 3, 'stride_h': 1, 'stride_w': 1, **dict.fromkeys(PADDING, 1), 'dilation_h': 1, 'dilation_w': 1}


def planes(channels, count, parts, random):
    """Return the operations of `parts` binary convolutions, each of the signs of one bit of a weight, on `count` planes of bits."""
    operations = [Operation('concat', (0,) * count)] if count > 1 else []
    compare = {'threshold': random.randn(channels * count).astype('f'), 'flip': np.zeros(channels * count, bool)}
    operations.append(Operation('threshold', (len(operations),), {}, compare))
    bits, total = len(operations), None
    attributes = {'out_channels': channels, **WINDOW, 'groups': 1, 'pad_value': -1, 'offset': 0, 'planes': count}
    for part in range(parts):
        operations.append(Operation('binary_conv', (bits,), attributes, {'weight': random.rand(channels, 3, 3, channels) < 0.5}))
        scale = {'scale': np.full(channels, 2.0**part / 3, 'f'), 'shift': np.zeros(channels, 'f')}
        operations.append(Operation('affine', (len(operations),), {}, scale))
        if total is not None:
            operations.append(Operation('add', (len(operations), total)))
        total = len(operations)
    return operations


def counted(channels, bits, random):
    thresholds = np.sort(random.randn(2**bits - 1, channels), axis=0).astype('f')
    arrays = {'threshold': thresholds, 'flip': np.zeros(channels, bool)}
    return Operation('multi_threshold', (0,), {'thresholds': len(thresholds)}, arrays)


def levels(channels, bits, random):
    return random.rand(bits, channels * channels * 9) < 0.5


def integers(channels, bits, random, name='level_int8_conv'):
    """Return the operations of a layer whose weights and inputs are integers of so many bits."""
    filters = np.ones(channels, np.int32)
    limit = 9 * channels * 4**bits if name == 'level_int8_conv' else 32766
    attributes = {'out_channels': channels, **WINDOW, 'groups': 1, 'shift': 8, 'result_min': -limit, 'result_max': limit}
    arrays = {'pad': 0 * filters, 'multiplier': 256 * filters, 'offset': 0 * filters}
    table = (np.arange(2**bits) - 2 ** (bits - 1)).astype(np.int8)
    if name == 'level_int8_conv':
        attributes.update(bits=bits, by_position=0)
        weight = {'codes': levels(channels, bits, random), 'levels': table[None]}
    else:
        weight = {'weight': random.choice(table, (channels, channels, 3, 3))}
    return [counted(channels, bits, random), Operation(name, (1,), attributes, {**weight, **arrays})]


def floats(channels, bits, random):
    """Return the operations of a layer with weights of so many bits that reads real numbers."""
    attributes = {'out_channels': channels, **WINDOW, 'groups': 1, 'has_bias': 0, 'bits': bits, 'by_position': 0}
    table = (np.arange(2**bits) - 2 ** (bits - 1)).astype('f')
    arrays = {'codes': levels(channels, bits, random), 'levels': table[None], 'scale': np.ones(channels, 'f')}
    return [counted(channels, bits, random), Operation('level_conv', (1,), attributes, arrays)]


FORMS = {  # name -> operations of (channels, random)
    'integers w4a4': lambda c, random: integers(c, 4, random),
    'integers w3a3': lambda c, random: integers(c, 3, random),
    'integers w2a2': lambda c, random: integers(c, 2, random),
    'int8_conv, 4 bits': lambda c, random: integers(c, 4, random, 'int8_conv'),
    'float32 w4a4': lambda c, random: floats(c, 4, random),
    'planes w1a1': lambda c, random: planes(c, 1, 1, random),
    'planes w1a2': lambda c, random: planes(c, 3, 1, random),
    'planes w2a2': lambda c, random: planes(c, 3, 2, random),
    'planes w1a3': lambda c, random: planes(c, 7, 1, random),
    'planes w2a3': lambda c, random: planes(c, 7, 2, random),
    'planes w1a4': lambda c, random: planes(c, 15, 1, random),
}


def main():
    """Measure all shapes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--turns', type=int, default=30)
    turns = parser.parse_args().turns
    random, rows = np.random.RandomState(0), {name: [] for name in FORMS}
    for channels, size in SHAPES:
        x, runners = random.randn(1, channels, size, size).astype('f'), {}
        for name, make in FORMS.items():
            operations = make(channels, random)
            program = Program([Value(REAL_KIND, channels, size, size, False)], operations, [len(operations)])
            runners[name] = Runner(program, program.to_words())
        found = {name: [] for name in FORMS}
        for _ in range(turns + 1):
            for name, runner in runners.items():
                start = time.perf_counter()
                runner.run([x], 1)
                found[name].append(time.perf_counter() - start)
        for name, seconds in found.items():
            rows[name].append(min(seconds[1:]) * 1e3)
    shapes = [f'{channels} @ {size}x{size}' for channels, size in SHAPES]
    print(f'{instruction_sets()[0]}, one thread\n| form | ' + ' | '.join(shapes) + ' |\n|-|' + '-|' * len(shapes))
    first = rows[next(iter(FORMS))]
    for name, times in rows.items():
        print(f'| {name} | ' + ' | '.join(f'{each:.2f} ({each / base:.2f})' for each, base in zip(times, first)) + ' |')


if __name__ == '__main__':
    main()
