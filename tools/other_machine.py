"""Comparison of the engine on another kind of machine, in an emulator, with this one: the kernels, and packed networks.

The kernels are compared with plain loops (``tests/csrc``), and float kernels and packed networks with this machine: all results must have
the same bits. `tools/test_arm.py` and `tools/test_wasm.py` describe the machines.
"""

import dataclasses
import gzip
import hashlib
import os
import pathlib
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
from support.small_networks import initialized  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.deployment.convert.conversion import convert  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from model_zoo import get_model  # noqa: E402

CASES = {'binary': 200, 'float_product': 100, 'float_map': 100, 'int8': 200}  # of kernels
FLOAT_KERNELS = ('float_product', 'float_map')
# Binary and float convolutions with what precedes and follows them: thresholds, transitions, PReLU, sigmoid, depthwise convolutions.
NETWORKS = {'meliusnet22': True, 'reactnet18': True, 'real_to_binary18': True, 'mobilenet0.25': False}  # whether it has binary layers
# With layers of 8-bit integers: in groups and chains, as transitions, of each channel.
INT8_NETWORKS = {'meliusnet22': True, 'meliusnetc': True, 'mobilenet0.25': False}
# Models of ONNX with operations on sequences: attention with Softmax and with signs, normalizations, layers of tokens, an embedding.
SEQUENCES = ('transformer-dynamo', 'transformer-bool', 'mixer', 'keyword-spotter-dynamo', 'tokens')
MODELS = ROOT / 'tests' / 'data' / 'onnx'
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


def check_kernels(machine: Machine, folder: pathlib.Path, kinds: Iterable[str] = tuple(CASES)):
    """Compare the kernels with plain loops, and float kernels with this machine's. Raises `UserError` if they differ."""
    for kind in kinds:
        source, cases, outputs = f'tests/csrc/{kind}_kernels_test.cc', CASES[kind], {}
        for compiler in machine.compilers:
            program = machine.build(folder, source, KERNEL_PARTS, compiler=compiler)
            outputs.update({f'{name} by {compiler}': machine.run(program, name, cases) for name in machine.instruction_sets})
        if kind in FLOAT_KERNELS:
            native = build_program(folder, source, KERNEL_PARTS, FLAGS)
            outputs['this machine'] = output_of([native, 'reference', cases])
            digests = {name: re.search('digest (.*)', output)[1] for name, output in outputs.items()}
            _require_equal(f'{kind} kernels', digests)
        print(f'{kind} kernels, {machine.name}, {cases} random cases: ok', flush=True)


def check_peaks(machine: Machine, folder: pathlib.Path):
    """Measure the peaks of every instruction set. Raises `UserError` if a kind of layer has none."""
    for compiler in machine.compilers:
        program = machine.build(folder, 'tests/csrc/peaks_test.cc', [*KERNEL_PARTS, 'peak'], compiler=compiler)
        for name in machine.instruction_sets:
            machine.run(program, name)
    print(f'peaks, {machine.name}: ok', flush=True)


def check_networks(folder: pathlib.Path, run: Callable[[pathlib.Path, pathlib.Path], Iterator[Tuple[str, str]]]):
    """Compare the outputs of packed networks with those on this machine.

    Parameters
    ----------
    folder : pathlib.Path
        For the files of the networks.
    run : function
        With the paths of the parameters of a packed network and of its input yields how it ran it, and its outputs as text.

    Raises
    ------
    UserError
        If bits differ.
    """
    shape, random = (1, 3, SIZE, SIZE), np.random.RandomState(0)
    x, others = random.randn(*shape).astype(np.float32), random.randn(4, *shape[1:]).astype(np.float32)
    networks = [('float32', None, *item) for item in NETWORKS.items()] + [('int8', others, *item) for item in INT8_NETWORKS.items()]
    for kind, calibration, name, is_binary in networks:
        net = initialized(get_model(name, classes=10, **(of_size(name, SIZE) if is_binary else {})), shape, mx.init.Xavier())
        net.export(str(folder / 'net'))
        files = folder / 'net-symbol.json', folder / 'net-0000.params', folder / 'packed'
        convert(*files, shape, verify=False, calibration=calibration, min_correlation=-1)
        _check_network(f'{name}, {kind}', folder, x, run)
    for name in SEQUENCES:
        (folder / 'net.onnx').write_bytes(gzip.decompress((MODELS / f'{name}.onnx.gz').read_bytes()))
        bmx.import_onnx(folder / 'net.onnx', folder / 'packed', zero_is_positive=True, verify=False)
        _check_network(name, folder, np.load(MODELS / f'{name}.npz')['input.input'][:1].astype(np.float32), run)


def _check_network(name, folder, x, run):
    """Compare the results of ``packed`` in a folder for an input."""
    x.tofile(folder / 'image')
    digests = {'this machine': _digest(bmx.Session(folder / 'packed')(x))}
    for way, scores in run(folder / 'packed-0000.params', folder / 'image'):
        digests[way] = _digest(np.array(scores.split(), np.float32))
    _require_equal(name, digests)
    print(f'{name}: {digests["this machine"]}', flush=True)


def _digest(numbers):
    """Return the first digits of the SHA-256 of float32 numbers."""
    return hashlib.sha256(numbers.astype('<f4').tobytes()).hexdigest()[:16]


def _require_equal(what, digests):
    if len(set(digests.values())) > 1:
        raise UserError(f'the bits of the results differ: {what}, {", ".join(f"{name} {value}" for name, value in digests.items())}')
