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

DTYPES = {'float': '<f4', 'int32_t': '<i4', 'int16_t': '<i2', 'uint8_t': 'u1'}

needs_gcc = pytest.mark.skipif(not shutil.which('gcc'), reason='the exported C is compiled by gcc')

# Reads batches of inputs from standard input and writes outputs, or with a trace the words of bits, to standard output.
_MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *memory(size_t bytes) {
    void *data = malloc(bytes); /* of exactly this size, so that AddressSanitizer detects accesses beyond it */
    if (!data) exit(3);
    return data;
}

static void get(void *data, size_t bytes) {
    if (fread(data, 1, bytes, stdin) != bytes) exit(4);
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
    networks: dict

    def run(self, name, inputs):
        """Return the outputs of network `name` for a batch: arrays (batch, size), float32, int16 or int32.

        Inputs are arrays as of the program, but (batch, height, width, channels) if the network takes pixels.
        """
        rows = np.frombuffer(self._call(name, inputs, 'outputs'), np.uint8).reshape(len(inputs[0]), -1)
        outputs = self.networks[name].outputs
        parts = np.split(rows, np.cumsum([output.bytes for output in outputs])[:-1], axis=1)
        return [np.ascontiguousarray(part).view(DTYPES[output.type]) for part, output in zip(parts, outputs)]

    def trace(self, name, inputs):
        """Return the words of all layers of bits, uint32 (batch, words)."""
        return np.frombuffer(self._call(name, inputs, 'trace'), '<u4').reshape(len(inputs[0]), -1)

    def _call(self, name, inputs, what):
        batch, types = len(inputs[0]), [DTYPES[parameter.type] for parameter in self.networks[name].inputs]
        data = b''.join(array[image].astype(dtype).tobytes() for image in range(batch) for array, dtype in zip(inputs, types))
        done = subprocess.run([self.path, name, str(batch), what], input=data, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors='replace')
        return done.stdout


def compile_networks(folder, networks, flags=SANITIZED):
    """Write networks, compile them and a main program.

    Parameters
    ----------
    networks : dict of str to CNetwork
    """
    folder = pathlib.Path(folder)
    main, objects = [_MAIN], []
    for name, network in networks.items():
        for file, text in network.files.items():
            (folder / file).write_text(text)
        traced = ['-DBMX_TRACE(value,words,count)=trace(words,count)', '-include', str(folder / 'trace.h')]
        (folder / 'trace.h').write_text('#include <stddef.h>\nvoid trace(const void *words, size_t count);\n')
        objects.append(folder / f'{name}.o')
        _compile([*FREESTANDING, *flags, *traced, '-c', folder / f'{name}.c', '-o', objects[-1]])
        main.append(f'#include "{name}.h"')
    main.append('int main(int argc, char **argv) {\n    if (argc != 4) return 1;\n    traces = !strcmp(argv[3], "trace");')
    for name, network in networks.items():
        parameters = [*network.inputs, *network.outputs]
        main.append(f'    if (!strcmp(argv[1], "{name}")) {{')
        main += [f'        {one.type} *{one.name} = memory({one.bytes});' for one in parameters]
        main.append('        for (int image = atoi(argv[2]); image > 0; --image) {')
        main += [f'            get({one.name}, {one.bytes});' for one in network.inputs]
        main.append(f'            {name}_run({", ".join(one.name for one in parameters)});')
        main += [f'            if (!traces) fwrite({one.name}, 1, {one.bytes}, stdout);' for one in network.outputs]
        main += ['        }', *(f'        free({one.name});' for one in parameters), '        return 0;', '    }']
    (folder / 'main.c').write_text('\n'.join([*main, '    return 2;', '}', '']))
    _compile(['-std=c99', *flags, folder / 'main.c', *objects, '-o', folder / 'networks'])
    return Compiled(folder / 'networks', networks)


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
    if not outputs:
        return np.empty((len(inputs[0]), 0), np.uint32)
    expanded = Program(program.inputs, operations, outputs)
    layers = Runner(expanded, expanded.to_words()).run(inputs)
    return np.concatenate([pack_bits(np.moveaxis(layer, 1, -1) > 0).reshape(len(layer), -1) for layer in layers], axis=1)


def reals(found, network):
    """Return the outputs of a network as the real numbers for which they stand."""
    return [
        numbers if output.type == 'float' else numbers.astype('f') * output.scale + output.shift
        for numbers, output in zip(found, network.outputs)
    ]


def exported(program, name, **arguments):
    """Return a program in C, by default with all of its outputs."""
    return to_c(program, arguments.pop('outputs', list(range(len(program.outputs)))), name, **arguments)
