"""Comparison of the engine on another kind of machine, in an emulator, with this one: the kernels, and packed networks.

The kernels are compared with plain loops (``tests/csrc``), and float kernels and packed networks with this machine: all results must have
the same bits. `tools/test_arm.py` and `tools/test_wasm.py` describe the machines.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import random as randoms
import re
import sys
from typing import Callable, Dict, Iterable, Iterator, List, Tuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from commands import output_of  # noqa: E402
from support.native_program import FLAGS, KERNEL_PARTS, build_program  # noqa: E402
from support.networks import of_size  # noqa: E402
from support.onnx_models import recorded_input, unpacked  # noqa: E402
from support.packed import write_packed  # noqa: E402
from support.random_programs import Maker, describe, programs_with_all  # noqa: E402
from support.small_networks import initialized  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.deployment.convert.conversion import convert  # noqa: E402
from bmx_melius.deployment.program.operations import OPERATIONS  # noqa: E402
from bmx_melius.deployment.program.program import Program  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from model_zoo import get_model  # noqa: E402

CASES = {'binary': 200, 'float_product': 100, 'float_map': 100, 'int8': 200}  # of kernels
FLOAT_KERNELS = ('float_product', 'float_map')
# Binary and float convolutions with what precedes and follows them: thresholds, transitions, PReLU, sigmoid, depthwise convolutions.
NETWORKS = {'meliusnet22': True, 'reactnet18': True, 'real_to_binary18': True, 'mobilenet0.25': False}  # whether it has binary layers
# With layers of 8-bit integers: in groups and chains, as transitions, of each channel.
INT8_NETWORKS = {'meliusnet22': True, 'meliusnetc': True, 'mobilenet0.25': False}
# Models of ONNX. With operations on sequences: attention with Softmax and with signs, normalizations, layers of tokens, an embedding. With
# layers of few levels: of 3 and 4 bits on both sides, whose weights or inputs have a sign, as planes, and binary and ternary weights alone.
IMPORTED = (
    *('transformer-dynamo', 'transformer-bool', 'mixer', 'keyword-spotter-dynamo', 'tokens'),
    *('lsq-w3a3', 'dorefa-w4a4', 'qonnx-w4a4', 'dorefa-w2a2-dynamo', 'bwn-float-inputs', 'ttq-float-inputs'),
)
PROGRAMS = 150  # random ones
SIZE = 64


@dataclasses.dataclass
class Machine:
    """A kind of machine.

    Parameters
    ----------
    name : str
        Its name in messages.
    compilers : dict
        Names of compilers -> their commands.
    flags : list of str
        Flags of the compilers.
    launcher : list of str
        The command that runs a program for it.
    instruction_sets : tuple of str
        Those that it has.
    """

    name: str
    compilers: Dict[str, List[str]]
    flags: List[str]
    launcher: List[str]
    instruction_sets: Tuple[str, ...]

    def build(self, folder, source, parts, *flags, compiler):
        """Return a program for the machine."""
        folder = folder / self.name / compiler
        folder.mkdir(parents=True, exist_ok=True)
        return build_program(folder, source, parts, [*FLAGS, *self.flags, *flags], self.compilers[compiler])

    def run(self, program, *arguments, instruction_set=None):
        """Run a program for the machine and return its output."""
        environment = {**os.environ, **({'BMX_MELIUS_ISA': instruction_set} if instruction_set else {})}
        return output_of([*self.launcher, program, *arguments], environment)


def kernel_parts(machine: Machine, folder: pathlib.Path, kinds: Iterable[str] = tuple(CASES)):
    """Return name -> function that calls `check_kernels`, for each kind (`commands.run_parts`)."""
    return {f'{kind} kernels of {machine.name}': functools.partial(check_kernels, machine, folder, kind) for kind in kinds}


def check_kernels(machine: Machine, folder: pathlib.Path, kind: str):
    """Compare kernels with plain loops, and float kernels with this machine's. Raises `UserError` if they differ."""
    source, cases, outputs = f'tests/csrc/{kind}_kernels_test.cc', CASES[kind], {}
    for compiler in machine.compilers:
        program = machine.build(folder, source, KERNEL_PARTS, compiler=compiler)
        outputs.update({f'{name} by {compiler}': machine.run(program, name, cases) for name in machine.instruction_sets})
    if kind in FLOAT_KERNELS:
        native = build_program(folder, source, KERNEL_PARTS, FLAGS, instruction_sets=())
        outputs['this machine'] = output_of([native, 'reference', cases])
        digests = {name: re.search('digest (.*)', output)[1] for name, output in outputs.items()}
        _require_equal(f'{kind} kernels', digests)


def check_peaks(machine: Machine, folder: pathlib.Path):
    """Measure the peaks of every instruction set. Raises `UserError` if a kind of layer has none."""
    for compiler in machine.compilers:
        program = machine.build(folder, 'tests/csrc/peaks_test.cc', [*KERNEL_PARTS, 'peak'], compiler=compiler)
        for name in machine.instruction_sets:
            machine.run(program, name)


def network_parts(folder: pathlib.Path, run: Callable[[pathlib.Path, pathlib.Path], Iterator[Tuple[str, str]]]):
    """Return name -> function that compares the outputs of packed networks with those on this machine (`commands.run_parts`).

    Parameters
    ----------
    folder : pathlib.Path
        For the files of the networks.
    run : function
        With the paths of the parameters of a packed network and of its input yields how it ran it, and its outputs as text.
    """
    parts = {}
    for kind, networks in (('float32', NETWORKS), ('int8', INT8_NETWORKS)):
        for name, is_binary in networks.items():
            parts[f'{name} {kind}'] = functools.partial(_check_network, folder, run, name, is_binary, kind == 'int8')
    parts.update({f'{name} imported': functools.partial(_check_model, folder, run, name) for name in IMPORTED})
    return parts


def _check_network(folder, run, name, is_binary, is_int8):
    """Compare a network of the zoo, of random weights."""
    shape, random = (1, 3, SIZE, SIZE), np.random.RandomState(0)
    x, others = random.randn(*shape).astype(np.float32), random.randn(4, *shape[1:]).astype(np.float32)
    net = initialized(get_model(name, classes=10, **(of_size(name, SIZE) if is_binary else {})), shape, mx.init.Xavier())
    net.export(str(folder / 'net'))
    files = folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed'
    convert(*files, shape, verify=False, calibration=others if is_int8 else None, min_correlation=-1)
    print(_compare(folder, x, run), flush=True)


def _check_model(folder, run, name):
    """Compare a model of ONNX."""
    bmx.import_onnx(unpacked(name, folder), folder / 'packed', zero_is_positive=True, verify=False)
    print(_compare(folder, recorded_input(name)[:1].astype(np.float32), run), flush=True)


def check_programs(folder: pathlib.Path, run: Callable[[pathlib.Path, pathlib.Path], Iterator[Tuple[str, str]]]):
    """Compare random programs with one input and one output, which depends, in one or another of them, on every operation.

    The arguments are those of `network_parts`. Raises `UserError` if bits differ.
    """
    random = randoms.Random(0)

    def make():
        while True:
            maker = Maker(random, exact=random.random() < 0.6)
            program = maker.program(random.randint(1, 14))
            if len(program.inputs) == 1:
                return maker, Program(program.inputs, program.operations, program.outputs[-1:])

    for number, (maker, program) in enumerate(programs_with_all(OPERATIONS, PROGRAMS, make)):
        write_packed(folder / 'packed', program)
        (x,) = maker.data([(value.height, value.width) for value in program.inputs], batch=1)
        try:
            _compare(folder, x, run)
        except UserError as error:
            raise UserError(f'program {number}: {error}\n{describe(program)}') from error


def _compare(folder, x, run):
    """Return the digest of the results of ``packed`` in a folder for an input. Raises `UserError` if another way has other bits."""
    x.tofile(folder / 'image')
    digests = {'this machine': _digest(bmx.Session(folder / 'packed')(x))}
    for way, scores in run(folder / 'packed-0000.params', folder / 'image'):
        digests[way] = _digest(np.array(scores.split(), np.float32))
    _require_equal('scores', digests)
    return digests['this machine']


def _digest(numbers):
    """Return the first digits of the SHA-256 of float32 numbers."""
    return hashlib.sha256(numbers.astype('<f4').tobytes()).hexdigest()[:16]


def _require_equal(what, digests):
    if len(set(digests.values())) > 1:
        raise UserError(f'the bits of the results differ: {what}, {", ".join(f"{name} {value}" for name, value in digests.items())}')
