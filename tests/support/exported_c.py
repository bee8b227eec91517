"""Programs exported as C, compiled for this machine and run: for tests of the export."""

import dataclasses
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from bmx_melius.deployment.c_export.c_files import to_c
from bmx_melius.deployment.program.operations import Operation
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import pack_bits
from bmx_melius.deployment.runtime.engine import Runner

FREESTANDING = ['-std=c99', '-Wall', '-Wextra', '-Werror', '-pedantic', '-ffreestanding']
FREESTANDING += ['-Wconversion', '-Wdouble-promotion', '-Wshadow', '-Wcast-align', '-Wcast-qual', '-Wundef']
SANITIZED = ['-O1', '-g1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all']

needs_gcc = pytest.mark.skipif(not shutil.which('gcc'), reason='the exported C is compiled by gcc')

# Reads batches of inputs from standard input and writes outputs, or with a trace the words of bits, to standard output.
_MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *floats(size_t count) {
    float *numbers = malloc(count * sizeof *numbers); /* of exactly this size, so that AddressSanitizer detects accesses beyond it */
    if (!numbers) exit(3);
    return numbers;
}

static void get(float *numbers, size_t count) {
    if (fread(numbers, sizeof *numbers, count, stdin) != count) exit(4);
}

static int traces;

void trace(const void *words, size_t count) {
    if (traces) fwrite(words, 4, count, stdout);
}
"""


@dataclasses.dataclass
class Compiled:
    """Executable with exported networks."""

    path: pathlib.Path

    def run(self, name, inputs, output_sizes):
        """Return the outputs of network `name` for a batch: float32 arrays (batch, size)."""
        batch = len(inputs[0])
        data = b''.join(array[image].astype('<f4').tobytes() for image in range(batch) for array in inputs)
        numbers = np.frombuffer(self._call(name, batch, 'outputs', data), '<f4').reshape(batch, -1)
        return np.split(numbers, np.cumsum(output_sizes)[:-1], axis=1)

    def trace(self, name, inputs):
        """Return the words of all layers of bits, uint32 (batch, words)."""
        batch = len(inputs[0])
        data = b''.join(array[image].astype('<f4').tobytes() for image in range(batch) for array in inputs)
        return np.frombuffer(self._call(name, batch, 'trace', data), '<u4').reshape(batch, -1)

    def _call(self, name, batch, what, data):
        done = subprocess.run([self.path, name, str(batch), what], input=data, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors='replace')
        return done.stdout


def compile_networks(folder, networks, flags=SANITIZED):
    """Write networks, compile them and a main program.

    Parameters
    ----------
    networks : dict of str to (CNetwork, list of int, list of int)
        For each name the network, and the sizes of its inputs and outputs.
    """
    folder = pathlib.Path(folder)
    main, objects = [_MAIN], []
    for name, (network, _, _) in networks.items():
        for file, text in network.files.items():
            (folder / file).write_text(text)
        traced = ['-DBMX_TRACE(value,words,count)=trace(words,count)', '-include', str(folder / 'trace.h')]
        (folder / 'trace.h').write_text('#include <stddef.h>\nvoid trace(const void *words, size_t count);\n')
        objects.append(folder / f'{name}.o')
        _compile([*FREESTANDING, *flags, *traced, '-c', folder / f'{name}.c', '-o', objects[-1]])
        main.append(f'#include "{name}.h"')
    main.append('int main(int argc, char **argv) {\n    if (argc != 4) return 1;\n    traces = !strcmp(argv[3], "trace");')
    for name, (_, inputs, outputs) in networks.items():
        parameters = [f'in{number}' for number in range(len(inputs))] + [f'out{number}' for number in range(len(outputs))]
        main.append(f'    if (!strcmp(argv[1], "{name}")) {{')
        main += [f'        float *{key} = floats({size});' for key, size in zip(parameters, inputs + outputs)]
        main.append('        for (int image = atoi(argv[2]); image > 0; --image) {')
        main += [f'            get({key}, {size});' for key, size in zip(parameters, inputs)]
        main.append(f'            {name}_run({", ".join(parameters)});')
        written = list(zip(parameters, inputs + outputs))[len(inputs) :]
        main += [f'            if (!traces) fwrite({key}, 4, {size}, stdout);' for key, size in written]
        main += ['        }', *(f'        free({key});' for key in parameters), '        return 0;', '    }']
    (folder / 'main.c').write_text('\n'.join([*main, '    return 2;', '}', '']))
    _compile(['-std=c99', *flags, folder / 'main.c', *objects, '-o', folder / 'networks'])
    return Compiled(folder / 'networks')


def _compile(arguments):
    done = subprocess.run([shutil.which('gcc'), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def bits_of_layers(program, inputs):
    """Return the words of all layers of bits that the engine computes, uint32 (batch, words), in the order of `Compiled.trace`."""
    operations, first = list(program.operations), len(program.inputs)
    outputs = []
    for number, operation in enumerate(program.operations, first):
        if operation.name == 'threshold':
            operations.append(Operation('expand', (number,), {'low': 0}))
            outputs.append(first + len(operations) - 1)
    expanded = Program(program.inputs, operations, outputs)
    layers = Runner(expanded, expanded.to_words()).run(inputs)
    return np.concatenate([pack_bits(np.moveaxis(layer, 1, -1) > 0).reshape(len(layer), -1) for layer in layers], axis=1)


def _size_of(value):
    return value.channels * value.height * value.width


def exported(program, name, **arguments):
    """Return what `compile_networks` takes: the network in C and the sizes of its inputs and outputs."""
    values = program.values(arguments.get('sizes'))
    outputs = arguments.pop('outputs', list(range(len(program.outputs))))
    network = to_c(program, outputs, name, **arguments)
    inputs = [_size_of(value) for value in values[: len(program.inputs)]]
    return network, inputs, [_size_of(values[program.outputs[output]]) for output in outputs]
