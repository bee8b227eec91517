"""Time of matrix products with weights of few bits, beside ONNX Runtime's `MatMulNBits` and 8-bit `MatMul`, one thread.

    python benchmarks/matrix_products.py

A weight of N x N numbers times 1 column and 64, as a layer that reads real numbers, or rounds them to bytes and multiplies integers.
All forms run in turns, twice, of which the second run counts; ONNX Runtime in a process and an environment of its own, which is made at
the first time. Printed are the least time of each in milliseconds and the median, and for those of ONNX Runtime the ratio of both to our
form of the same bits and inputs.
"""

import argparse
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
from environments import python_with
from onnxruntime_products import FORMS, inputs_of, levels_of, weights_of

from bmx_melius.deployment.program.operations import PADDING, REAL_KIND, Operation, Value
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime.engine import Runner, instruction_sets

PACKAGES = ['onnxruntime==1.32.0', 'onnx==1.17.0', 'numpy==1.26.4']
SIZES, COLUMNS = (1024, 4096), (1, 64)
WINDOW = {'kernel_h': 1, 'kernel_w': 1, 'stride_h': 1, 'stride_w': 1, **dict.fromkeys(PADDING, 0), 'dilation_h': 1, 'dilation_w': 1}
OURS = {(kind, bits): f'{bits}-bit weights x {kind}' for kind in ('bytes', 'real numbers') for bits in (4, 2, 8)}
COMPARED = {  # forms of ONNX Runtime -> ours
    'MatMulNBits, 4 bits, accuracy_level=4': ('bytes', 4),
    'MatMulNBits, 2 bits, accuracy_level=4': ('bytes', 2),
    'dynamic int8 MatMul': ('bytes', 8),
    'MatMulInteger of bytes': ('bytes', 8),
    'MatMulNBits, 4 bits, accuracy_level=0': ('real numbers', 4),
    'MatMulNBits, 2 bits, accuracy_level=0': ('real numbers', 2),
    'float32 MatMul': ('real numbers', 8),
}


def runner_of(kind, bits, size):
    """Return a `Runner` of a product; of bytes, it rounds its inputs and returns the sums."""
    weight, ones = weights_of(size, bits), np.ones(size, np.int32)
    attributes, arrays = {'out_channels': size, **WINDOW, 'groups': 1}, {}
    low, high = levels_of(bits)
    if bits < 8:
        attributes.update(bits=bits, by_position=0)
        codes = (weight.reshape(-1).astype(int) - low) >> np.arange(bits)[:, None] & 1
        arrays = {'codes': codes.astype(bool), 'levels': np.arange(low, high + 1)[None].astype('f' if kind != 'bytes' else np.int8)}
    if kind == 'bytes':
        attributes.update(shift=8, result_min=-(1 << 23), result_max=1 << 23)
        arrays = {**(arrays or {'weight': weight[:, :, None, None]}), 'pad': 0 * ones, 'multiplier': 256 * ones, 'offset': 0 * ones}
        limits = {'shift': 8, 'result_min': 0, 'result_max': 255}
        operations = [Operation('rescale', (0,), limits, {'multiplier': 256 * ones, 'offset': 0 * ones})]
        if bits == 8:  # whose results have 16 bits: they are scaled
            attributes.update(shift=16, result_min=-32766, result_max=32766)
        operations.append(Operation('int8_conv' if bits == 8 else 'level_int8_conv', (1,), attributes, arrays))
    elif bits == 8:
        operations = [Operation('conv', (0,), {**attributes, 'has_bias': 0, 'half': 0}, {'weight': weight.astype('f')[:, :, None, None]})]
    else:
        operations = [Operation('level_conv', (0,), {**attributes, 'has_bias': 0}, {**arrays, 'scale': np.ones(size, 'f')})]
    # The size at conversion: the program accepts any number of columns.
    program = Program([Value(REAL_KIND, size, 1, 2, False)], operations, [len(operations)])
    runner = Runner(program, program.to_words())
    x = inputs_of(size, 2)
    found = runner.run([as_map(x)], 1)[0][0, :, 0].T
    expected = x.astype(np.float64) @ weight.T / (256 if (kind, bits) == ('bytes', 8) else 1)
    if np.abs(found - expected.clip(-(1 << 23), 1 << 23)).max() > max(0.51, 1e-5 * np.abs(expected).max()):
        raise SystemExit(f'{OURS[kind, bits]} computes something else')
    return runner


def as_map(x):
    """Return columns, float32 (columns, size), as the map of a sequence: (1, size, 1, columns)."""
    return np.ascontiguousarray(x.T)[None, :, None]


def main():
    """Measure all forms and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--turns', type=int, default=15)
    turns = parser.parse_args().turns
    command = [python_with('onnxruntime', PACKAGES), Path(__file__).with_name('onnxruntime_products.py')]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def of_peer(form, size, columns):
        peer.stdin.write(f'{form}\t{size}\t{columns}\n')
        peer.stdin.flush()
        answer = peer.stdout.readline()
        if not answer:
            raise SystemExit(f'the process of ONNX Runtime has ended with status {peer.wait()}')
        return float(answer)

    found = {}
    for size in SIZES:
        runners = {key: runner_of(*key, size) for key in OURS}
        for columns in COLUMNS:
            x, seconds = as_map(inputs_of(size, columns)), {}
            for turn in range(turns + 1):
                first = turn % len(OURS)  # which finds other data in the caches than those after it
                for key in [*OURS][first:] + [*OURS][:first]:
                    runner = runners[key]
                    runner.run([x], 1)  # as the process of ONNX Runtime does
                    start = time.perf_counter()
                    runner.run([x], 1)
                    seconds.setdefault(key, []).append(time.perf_counter() - start)
                for form in FORMS:
                    seconds.setdefault(form, []).append(of_peer(form, size, columns))
            found[size, columns] = {key: (min(times[1:]) * 1e3, statistics.median(times[1:]) * 1e3) for key, times in seconds.items()}
    peer.stdin.close()
    print(f'{instruction_sets()[0]}, one thread, least and median in ms\n')
    print('| product | ' + ' | '.join(f'{size} x {size} x {columns}' for size, columns in found) + ' |\n|-|' + '-|' * len(found))
    for key, name in OURS.items():
        print(f'| {name} | ' + ' | '.join('{:.2f}, {:.2f}'.format(*times[key]) for times in found.values()) + ' |')
        for form in (form for form, ours in COMPARED.items() if ours == key):
            cells = [
                '{:.2f}, {:.2f} ({:.2f}, {:.2f})'.format(*times[form], *(other / own for own, other in zip(times[key], times[form])))
                for times in found.values()
            ]
            print(f'| {form} | ' + ' | '.join(cells) + ' |')


if __name__ == '__main__':
    main()
