"""Tests of exported C on microcontrollers under emulation: ``make test-mcu``.

A small MeliusNet is trained on the digits, packed with real-valued and with 8-bit layers, and exported as C. ``examples/mcu`` compiles both
for Cortex-M and RISC-V processors and runs them in QEMU: the example must classify its digit, and for the test digits the bits of every
binary layer and the logits must equal the engine's, memory must be what the export printed, and the network of 8-bit integers must not
contain floats. Any difference ends it with an error.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = [sys.executable, '-W', 'ignore']
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

import numpy as np  # noqa: E402
from commands import install_tools, output_of, run_main  # noqa: E402
from support.exported_c import bits_of_layers  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.data.small_images import open_digits  # noqa: E402
from bmx_melius.deployment.runtime.engine import require_engine  # noqa: E402
from bmx_melius.deployment.runtime.packed_files import read_packed  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.files.exported import Exported  # noqa: E402

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
MAKEFILE = ROOT / 'examples' / 'mcu' / 'Makefile'
ANSWER = 'class 3\n'  # of the digit in examples/mcu/main.c
MAX_CODE = 16 << 10
CONSTANTS_TOLERANCE = 256  # bytes of small constants that the compiler moves from the code or into it
CODE_TOLERANCE = 0.25  # of the estimate, with -Os on ESTIMATED
ESTIMATED = 'cortex-m3'
SECONDS = 600  # for a command at most
NETWORKS = {'float': [], 'int8': ['--int8', 'digits']}  # flags of their conversion
KINDS = {
    'binary_conv': 'binary convolutions',
    'conv': 'float convolutions',
    'int8_conv': '8-bit convolutions',
    'threshold': 'thresholds',
}
DTYPES = {'float': '<f4', 'int16_t': '<i2', 'uint8_t': 'u1'}
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


def main():
    """Run all checks. Raises `UserError` at the first difference."""
    install_tools(TOOLS)
    require_engine()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_command([*PYTHON, ROOT / 'train_imagenet.py', *TRAINING, '--save-dir', folder / 'run'])
        for network, flags in NETWORKS.items():
            check_network(network, folder / network, [folder / 'run' / 'meliusnet_flex', folder / network / 'packed', *flags])


def check_network(network, folder, conversion):
    """Pack and export the network, and run it on all processors."""
    folder.mkdir()
    facts = export(folder, conversion)
    expected = results_of_engine(network, folder / 'packed', facts)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(processor, level) for processor in PROCESSORS for level in ('-Os', '-O2')]
        for text in pool.map(lambda job: check(folder, facts, expected, *job), jobs):
            print(f'{network}, {text}', flush=True)
    images, _, bits = expected
    print(
        f'{len(images)} digits: the bits of all {facts["binary_layers"]} binary layers, {bits.shape[1]} words for each digit, and all '
        'logits are equal to the engine'
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
    print(f'{network}: {len(images)} test digits, top-1 {accuracy:.1%}', flush=True)
    inputs = images if facts['has_floats'] else np.stack([image.asnumpy() for image in crops])
    return inputs, logits, bits_of_layers(read_packed(packed)[0], [images])


def check(folder, facts, expected, processor, level):
    """Run the example and the test program for a processor, and return a description of memory and instructions."""
    images, logits, bits = expected
    example, test = folder / (processor + level), folder / f'{processor}{level}-test'
    arguments = [f'PROCESSOR={processor}', f'LEVEL={level}', f'NETWORK={folder / NAME}']
    build(example, arguments)
    answer = run(example, arguments)
    if answer != ANSWER:
        raise UserError(f'{processor} {level}: the example printed {answer!r}, not {ANSWER!r}')
    arguments += test_program(facts)
    build(test, arguments)
    images.astype(DTYPES[facts['inputs'][0]['type']]).tofile(test / 'images.bin')
    output = run(test, [*arguments, 'EMULATOR_FLAGS=-icount shift=0'])
    try:
        check_results(test, facts, logits, bits)
        check_functions(example, facts)
        return f'{processor} {level}: {check_memory(example, facts, output, processor, level)}; {instructions(facts, output, processor)}'
    except UserError as error:
        raise UserError(f'{processor} {level}: {error}') from error


def test_program(facts):
    """Return the arguments of `make` for the test program, which writes bits and measures layers."""
    upper = NAME.upper()
    defined = {'NETWORK_HEADER': f'"{NAME}.h"', 'NETWORK_RUN': f'{NAME}_run'}
    for side, (parameter,) in (('INPUT', facts['inputs']), ('OUTPUT', facts['outputs'])):
        defined.update({f'{side}_SIZE': f'{upper}_{side}_SIZE', f'{side}_TYPE': parameter['type']})
    flags = ' '.join(f"'-D{key}={value}'" for key, value in defined.items())
    return [f'PROGRAM={ROOT / "tools" / "mcu" / "run.c"}', f'EXTRA=-include {ROOT / "tools" / "mcu" / "hooks.h"} {flags}']


def build(folder, arguments):
    """Compile the network and a program that runs it."""
    folder.mkdir()
    run_command(['make', '-s', '-f', MAKEFILE, f'OUT={folder}', *arguments], folder)


def run(folder, arguments):
    """Run the program in the emulator and return what it printed."""
    return run_command(['make', '-s', '-f', MAKEFILE, 'run', f'OUT={folder}', *arguments], folder, messages=True)


def check_results(folder, facts, logits, bits):
    """Compare the bits of every layer and the logits with the engine's."""
    words = np.fromfile(folder / 'bits.bin', '<u4')
    if words.size != bits.size or not np.array_equal(words.reshape(bits.shape), bits):
        raise UserError('the bits of binary layers differ from the engine')
    (output,) = facts['outputs']
    outputs = np.fromfile(folder / 'outputs.bin', DTYPES[output['type']]).astype(np.float32) * np.float32(output['scale'])
    if outputs.size != logits.size or not np.array_equal(outputs.reshape(logits.shape).view(np.uint32), logits.view(np.uint32)):
        raise UserError('the logits differ from the engine')


def check_functions(example, facts):
    """Raise `UserError` if a network without floats calls functions for them."""
    names = run_command(['arm-none-eabi-nm', '--undefined-only', '--just-symbols', example / 'network.o']).split()
    found = [name for name in names if FLOAT_FUNCTIONS.fullmatch(name)]
    if found and not facts['has_floats']:
        raise UserError(f'the network calls {", ".join(found)}')


def check_memory(example, facts, output, processor, level):
    """Compare the memory of the example, and the stack of the test, with what the export printed; return a description."""
    stack = int(re.match(r'stack (\d+) ', output)[1])
    network, program = sections_of(example / 'network.o'), sections_of(example / 'firmware.elf')
    arena = total(network, '.bss', '.sbss')
    if arena != facts['arena_bytes']:
        raise UserError(f'the network has {arena} bytes of static memory; the export printed {facts["arena_bytes"]}')
    if stack > facts['stack_bytes']:
        raise UserError(f'a run needs {stack} bytes of stack; the export printed {facts["stack_bytes"]}')
    code = total(program, '.text') - sum(total(sections_of(example / f'{name}.o'), '.text') for name in ('program', 'start'))
    if code > MAX_CODE:
        raise UserError(f'the code has {code} bytes, more than {MAX_CODE}')
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
    counts = dict.fromkeys([*KINDS.values(), 'other layers'], 0)
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
    run_main(main)
