"""Tests of exported C on microcontrollers under emulation: ``make test-mcu``.

A small MeliusNet is trained on the digits, packed with real-valued and with 8-bit layers, and exported as C. ``examples/mcu`` compiles both
for Cortex-M and RISC-V processors and runs them in QEMU: the example must classify its digit, and for the test digits the bits of every
binary layer and the logits must equal the engine's, memory must be what the export printed, and the network of 8-bit integers must not
contain floats. Models of ONNX, whose operations the MeliusNet does not have, are compared in the same way. Any difference is an error.

The parts, one for each network, can be run one by one: ``--list`` names them.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = [sys.executable, '-W', 'ignore']
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

import mcu_emulator  # noqa: E402
import numpy as np  # noqa: E402
from commands import output_of, run_main, run_parts  # noqa: E402
from support.exported_c import DTYPES, bits_of_layers  # noqa: E402
from support.onnx_models import recorded_input, unpacked  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.data.small_images import open_digits  # noqa: E402
from bmx_melius.deployment.runtime.engine import require_engine  # noqa: E402
from bmx_melius.deployment.runtime.packed_files import read_packed  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.files.exported import Exported  # noqa: E402
from bmx_melius.forking import lazy_attribute  # noqa: E402

TOOLS = {
    'arm-none-eabi-gcc': 'gcc-arm-none-eabi',
    'qemu-system-arm': 'qemu-system-arm',
    'riscv64-unknown-elf-gcc': 'gcc-riscv64-unknown-elf',
    'qemu-system-riscv32': 'qemu-system-misc',
}
OPTIONS = {'block_numbers': [2, 2], 'transitions': [48], 'growth_rate': 32, 'init_features': 16}
TRAINING = ['--model', 'meliusnet_flex', '--dataset', 'digits', '--seed', '1', '--batch-size', '32', '--model-options', json.dumps(OPTIONS)]
REQUIRED = 0.9  # top-1 accuracy, so that the network is one that has learned
NAME = 'digits'
ANSWER = 'class 3\n'  # of the digit in examples/mcu/main.c
CONSTANTS_TOLERANCE = 256  # bytes of small constants that the compiler moves from the code or into it
CODE_TOLERANCE = 0.25  # of the estimate, with -Os on ESTIMATED
CODE_LIMIT = 2  # times the estimate, at any level on any processor
ESTIMATED = 'cortex-m3'
SECONDS = 600  # for a command at most
NETWORKS = {'float': [], 'int8': ['--int8', 'digits']}  # flags of their conversion
# Models of ONNX: a transformer whose inputs are integers; 3 bits on both sides; binary weights times real inputs.
MODELS = ('tokens', 'lsq-w3a3', 'bwn-float-inputs')
TOO_SMALL = 'cortex-m0'  # for the models: its machine has 16 KB of RAM
KINDS = {
    'binary_conv': 'binary convolutions',
    'conv': 'float convolutions',
    'int8_conv': '8-bit convolutions',
    'level_int8_conv': 'convolutions of few levels on both sides',
    'level_conv': 'convolutions with weights of few levels',
    'matmul': 'products of two values',
    'threshold': 'thresholds',
}
FLOATS = re.compile(r'\b(float|double)\b')
FLOAT_FUNCTIONS = re.compile(r'__aeabi_(c?[fd]|[iul]+2[fd])\w*|__\w+[sd]f\w*')  # of the compiler's library

# Processor, as in examples/mcu/Makefile -> timer in MHz. An instruction takes 1 ns of the emulator's time, and on RISC-V is a tick.
PROCESSORS = {
    'cortex-m0': 16,
    'cortex-m3': 25,
    'cortex-m4': 25,
    'cortex-m7': 25,
    'cortex-m33': 20,
    'rv32imac': 1000,
    'rv32imac_zbb': 1000,
    'rv32imafc': 1000,
}


def parts_in(folder):
    """Return the parts of the test (`commands.run_parts`)."""
    tested = Tested(folder)
    return {
        **{network: functools.partial(tested.check_digits, network) for network in NETWORKS},
        **{name: functools.partial(tested.check_model, name) for name in MODELS},
    }


class Tested:
    """The networks, in a folder; the one of the digits is trained when the first part needs it."""

    def __init__(self, folder):
        self.folder = folder

    @lazy_attribute
    def trained(self):
        """The prefix of the trained network."""
        run_command([*PYTHON, ROOT / 'train_imagenet.py', *TRAINING, '--save-dir', self.folder / 'run'])
        return self.folder / 'run' / 'meliusnet_flex'

    def check_digits(self, network):
        """Pack and export the trained network, and run it and the example on all processors."""
        require_engine()
        folder = self.folder / network
        folder.mkdir()
        facts = export(folder, [self.trained, folder / 'packed', *NETWORKS[network]])
        expected = results_of_engine(network, folder / 'packed', facts)
        check_on(PROCESSORS, folder, facts, expected, ANSWER)

    def check_model(self, name):
        """Pack and export a model of ONNX, and run it on all processors with enough memory."""
        require_engine()
        folder = self.folder / name
        folder.mkdir()
        bmx.import_onnx(unpacked(name, folder), folder / 'packed', zero_is_positive=True, verify=False)
        inputs = recorded_input(name).astype(np.float32)
        expected = inputs, bmx.Session(folder / 'packed')(inputs), bits_of_layers(read_packed(folder / 'packed')[0], [inputs])
        check_on([name for name in PROCESSORS if name != TOO_SMALL], folder, exported_facts(folder, folder / 'packed'), expected)


def check_on(processors, folder, facts, expected, answer=None):
    """Run an exported network on processors, optimized for size and for speed, and print what it takes; see `check`."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [(processor, level) for processor in processors for level in ('-Os', '-O2')]
        for text in pool.map(lambda job: check(folder, facts, expected, answer, *job), jobs):
            print(text, flush=True)
    images, _, bits = expected
    print(
        f'{len(images)} inputs: the bits of all {facts["binary_layers"]} binary layers, {bits.shape[1]} words for each input, and all '
        'results are equal to the engine'
    )


def export(folder, conversion):
    """Pack the network with these arguments and export it. Return what the export printed."""
    run_command([*PYTHON, '-m', 'bmx_melius', 'convert', *conversion])
    return exported_facts(folder, folder / 'packed')


def exported_facts(folder, packed):
    """Export a packed network to a folder. Return what the export printed, and facts that follow from it."""
    text = run_command([*PYTHON, '-m', 'bmx_melius', 'export-c', packed, folder, '--name', NAME, '--json'])
    facts = json.loads(text)
    facts['binary_layers'] = sum(layer['operation'] == 'binary_conv' for layer in facts['layers'])
    facts['has_floats'] = any(FLOATS.search(pathlib.Path(path).read_text()) for path in facts['files'])
    return facts


def results_of_engine(network, packed, facts):
    """Return the test digits as inputs, and the logits and the words of the bits that the engine computes from them."""
    spec = Exported(packed).description().input_spec()
    digits, labels = zip(*open_digits().test)
    crops = [spec.crop(image) for image in digits]
    images = np.stack([spec.normalize(image).asnumpy() for image in crops])
    logits = bmx.Session(packed)(images)
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    if accuracy < REQUIRED:
        raise UserError(f'the network has not learned: top-1 {accuracy:.1%}')
    if facts['has_floats'] != (network == 'float'):
        raise UserError(f'the files of the {network} network {"contain" if facts["has_floats"] else "do not contain"} floats')
    print(f'{len(images)} test digits, top-1 {accuracy:.1%}', flush=True)
    inputs = images if facts['has_floats'] else np.stack([image.asnumpy() for image in crops])
    return inputs, logits, bits_of_layers(read_packed(packed)[0], [images])


def check(folder, facts, expected, answer, processor, level):
    """Run the test program and, if its answer is given, the example for a processor; return a description of memory and instructions."""
    images, logits, bits = expected
    plain, test = folder / (processor + level), folder / f'{processor}{level}-test'
    arguments = [f'PROCESSOR={processor}', f'LEVEL={level}', f'NETWORK={folder / NAME}']
    build(plain, [*arguments, *([] if answer else test_program(facts, traces=False))])
    if answer and run(plain, arguments) != answer:
        raise UserError(f'{processor} {level}: the example did not print {answer!r}')
    arguments += test_program(facts)
    build(test, arguments)
    images.astype(DTYPES[facts['inputs'][0]['type']]).tofile(test / 'images.bin')
    output = run(test, [*arguments, mcu_emulator.COUNTED])
    try:
        check_results(test, facts, logits, bits)
        check_functions(plain, facts)
        return f'{processor} {level}: {check_memory(plain, facts, output, processor, level)}; {instructions(facts, output, processor)}'
    except UserError as error:
        raise UserError(f'{processor} {level}: {error}') from error


def test_program(facts, traces=True):
    """Return the arguments of `make` for the test program; if it `traces`, the network writes bits and measures layers."""
    upper = NAME.upper()
    defined = {'NETWORK_HEADER': f'"{NAME}.h"', 'NETWORK_RUN': f'{NAME}_run', 'LAYERS': len(facts['layers'])}
    for side, (parameter,) in (('INPUT', facts['inputs']), ('OUTPUT', facts['outputs'])):
        defined.update({f'{side}_SIZE': f'{upper}_{side}_SIZE', f'{side}_TYPE': parameter['type']})
    flags = [f"'-D{key}={value}'" for key, value in defined.items()]
    hooks = [f'-include {ROOT / "tools" / "mcu" / "hooks.h"}'] if traces else []
    return [f'PROGRAM={ROOT / "tools" / "mcu" / "run.c"}', f'EXTRA={" ".join([*hooks, *flags])}']


def build(folder, arguments):
    """Compile the network and a program that runs it."""
    folder.mkdir()
    mcu_emulator.make('all', folder, *arguments)


def run(folder, arguments):
    """Run the program in the emulator and return what it printed."""
    return mcu_emulator.make('run', folder, *arguments)


def check_results(folder, facts, logits, bits):
    """Compare the bits of every layer and the logits with the engine's."""
    words = np.fromfile(folder / 'bits.bin', '<u4')
    if words.size != bits.size or not np.array_equal(words.reshape(bits.shape), bits):
        raise UserError('the bits of binary layers differ from the engine')
    (output,) = facts['outputs']
    outputs = np.fromfile(folder / 'outputs.bin', DTYPES[output['type']]).astype(np.float32) * np.float32(output['scale'])
    if outputs.size != logits.size or not np.array_equal(outputs.reshape(logits.shape).view(np.uint32), logits.view(np.uint32)):
        raise UserError('the logits differ from the engine')


def check_functions(folder, facts):
    """Raise `UserError` if a network without floats calls functions for them."""
    names = run_command(['arm-none-eabi-nm', '--undefined-only', '--just-symbols', folder / 'network.o']).split()
    found = [name for name in names if FLOAT_FUNCTIONS.fullmatch(name)]
    if found and not facts['has_floats']:
        raise UserError(f'the network calls {", ".join(found)}')


def check_memory(folder, facts, output, processor, level):
    """Compare the memory of a program without traces, and the stack of the test, with what the export printed; return a description."""
    stack = int(re.match(r'stack (\d+) ', output)[1])
    network, program = sections_of(folder / 'network.o'), sections_of(folder / 'firmware.elf')
    arena = total(network, '.bss', '.sbss')
    if arena != facts['arena_bytes']:
        raise UserError(f'the network has {arena} bytes of static memory; the export printed {facts["arena_bytes"]}')
    if stack > facts['stack_bytes']:
        raise UserError(f'a run needs {stack} bytes of stack; the export printed {facts["stack_bytes"]}')
    code = total(program, '.text') - sum(total(sections_of(folder / f'{name}.o'), '.text') for name in ('program', 'start'))
    if code > CODE_LIMIT * facts['code_bytes']:
        raise UserError(f'the code has {code} bytes, more than {CODE_LIMIT} times the estimate of {facts["code_bytes"]}')
    if (processor, level) == (ESTIMATED, '-Os') and abs(code / facts['code_bytes'] - 1) > CODE_TOLERANCE:
        raise UserError(f'the code has {code} bytes; the export estimated {facts["code_bytes"]}')
    weights = total(network, '.rodata', '.srodata')
    if abs(weights - facts['weights_bytes']) > CONSTANTS_TOLERANCE:
        raise UserError(f'the constants have {weights} bytes; the export printed {facts["weights_bytes"]}')
    return (
        f'{code:,} bytes of code, {weights:,} of constants, {arena:,} of static '
        f'memory, {stack:,} of stack (at most {facts["stack_bytes"]:,})'
    )


def instructions(facts, output, processor):
    """Return a description of the instructions for a digit, and for each kind of layer."""
    scale = 1000 / PROCESSORS[processor] / 1e6  # millions of instructions for a tick
    names = {layer['value']: KINDS.get(layer['operation'], 'other layers') for layer in facts['layers']}
    counts = {name: 0 for name in [*KINDS.values(), 'other layers'] if name in names.values()}
    for value, ticks in re.findall(r'^layer (\d+) ticks (\d+) $', output, re.MULTILINE):
        counts[names[int(value)]] += scale * int(ticks)
    layers = ', '.join(f'{name} {count:.2f}' for name, count in counts.items())
    return f'{scale * int(re.match("stack [0-9]+ ticks ([0-9]+) ", output)[1]):.2f} million instructions for an image: {layers}'


def sections_of(path):
    """Return the sizes of the sections of an object or program."""
    rows = (line.split() for line in run_command(['arm-none-eabi-size', '-A', path]).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}


def total(sections, *names):
    """Return the bytes of sections with these names, or that begin with one and a point."""
    return sum(size for section, size in sections.items() for name in names if section == name or section.startswith(f'{name}.'))


def run_command(command, folder=ROOT, messages=False):
    """Run a command and return its output, with standard error if `messages`. Raises `UserError` if it fails or takes too long."""
    return output_of(command, folder=folder, messages=messages, seconds=SECONDS)


if __name__ == '__main__':
    run_main(run_parts, __doc__, TOOLS, parts_in)
