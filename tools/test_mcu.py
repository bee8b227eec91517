"""Tests of exported C on microcontrollers under emulation: ``make test-mcu``.

A small MeliusNet is trained on the digits, packed and exported as C. ``examples/mcu`` compiles it for Cortex-M and RISC-V processors and
runs it in QEMU: the example must classify its digit, and for the test digits the bits of every binary layer and the logits must be those
of the engine, and memory must be what the export printed. Any difference ends it with an error.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
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
KINDS = {'binary_conv': 'binary convolutions', 'conv': 'float convolutions', 'threshold': 'thresholds'}

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
        packed, facts = export(folder)
        expected = results_of_engine(packed)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [(processor, level) for processor in PROCESSORS for level in ('-Os', '-O2')]
            for text in pool.map(lambda job: check(folder, facts, expected, *job), jobs):
                print(text, flush=True)
        images, _, bits = expected
    print(
        f'{len(images)} digits: the bits of all {facts["binary_layers"]} binary layers, {bits.shape[1]} words for each digit, and all '
        'logits are those of the engine'
    )


def export(folder):
    """Train, pack and export the network. Return the prefix of the packed files, and what the export printed."""
    python = [sys.executable, '-W', 'ignore']
    run_command([*python, ROOT / 'train_imagenet.py', *TRAINING, '--save-dir', folder / 'run'])
    run_command([*python, '-m', 'bmx_melius', 'convert', folder / 'run' / 'meliusnet_flex', folder / 'packed'])
    text = run_command([*python, '-m', 'bmx_melius', 'export-c', folder / 'packed', folder, '--name', NAME, '--json'])
    facts = json.loads(text)
    facts['binary_layers'] = sum(layer['operation'] == 'binary_conv' for layer in facts['layers'])
    return folder / 'packed', facts


def results_of_engine(packed):
    """Return the test digits as inputs, and the logits and the words of the bits that the engine computes from them."""
    spec = Exported(packed).description().input_spec()
    digits, labels = zip(*open_digits().test)
    images = np.stack([spec.normalize(spec.crop(image)).asnumpy() for image in digits])
    logits = bmx.Session(packed)(images)
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    if accuracy < REQUIRED:
        raise UserError(f'the network has not learned: top-1 {accuracy:.1%}')
    print(f'{len(images)} test digits, top-1 {accuracy:.1%}', flush=True)
    return images, logits, bits_of_layers(read_packed(packed)[0], [images])


def check(folder, facts, expected, processor, level):
    """Run the example and the test program for a processor, and return a description of memory and instructions."""
    images, logits, bits = expected
    example, test = folder / (processor + level), folder / f'{processor}{level}-test'
    arguments = [f'PROCESSOR={processor}', f'LEVEL={level}', f'NETWORK={folder / NAME}']
    build(example, arguments)
    answer = run(example, arguments)
    if answer != ANSWER:
        raise UserError(f'{processor} {level}: the example printed {answer!r}, not {ANSWER!r}')
    arguments += test_program()
    build(test, arguments)
    images.astype('<f4').tofile(test / 'images.bin')
    output = run(test, [*arguments, 'EMULATOR_FLAGS=-icount shift=0'])
    try:
        check_results(test, logits, bits)
        return f'{processor} {level}: {check_memory(example, facts, output, processor, level)}; {instructions(facts, output, processor)}'
    except UserError as error:
        raise UserError(f'{processor} {level}: {error}') from error


def test_program():
    """Return the arguments of `make` for the test program, which writes bits and measures layers."""
    upper = NAME.upper()
    defined = {'NETWORK_HEADER': f'"{NAME}.h"', 'NETWORK_RUN': f'{NAME}_run'}
    defined.update({f'{side}_SIZE': f'{upper}_{side}_SIZE' for side in ('INPUT', 'OUTPUT')})
    flags = ' '.join(f"'-D{key}={value}'" for key, value in defined.items())
    return [f'PROGRAM={ROOT / "tools" / "mcu" / "run.c"}', f'EXTRA=-include {ROOT / "tools" / "mcu" / "hooks.h"} {flags}']


def build(folder, arguments):
    """Compile the network and a program that runs it."""
    folder.mkdir()
    run_command(['make', '-s', '-f', MAKEFILE, f'OUT={folder}', *arguments], folder)


def run(folder, arguments):
    """Run the program in the emulator and return what it printed."""
    return run_command(['make', '-s', '-f', MAKEFILE, 'run', f'OUT={folder}', *arguments], folder, messages=True)


def check_results(folder, logits, bits):
    """Compare the bits of every layer and the logits with those of the engine."""
    words = np.fromfile(folder / 'bits.bin', '<u4')
    if words.size != bits.size or not np.array_equal(words.reshape(bits.shape), bits):
        raise UserError('the bits of binary layers differ from those of the engine')
    outputs = np.fromfile(folder / 'outputs.bin', '<f4')
    if outputs.size != logits.size or not np.array_equal(outputs.reshape(logits.shape).view(np.uint32), logits.view(np.uint32)):
        raise UserError('the logits differ from those of the engine')


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
    """Return a description of the instructions for a digit, and of those of each kind of layer."""
    scale = 1000 / PROCESSORS[processor] / 1e6  # millions of instructions for a tick
    names = {layer['value']: KINDS.get(layer['operation'], 'other layers') for layer in facts['layers']}
    counts = dict.fromkeys([*KINDS.values(), 'other layers'], 0)
    for value, ticks in re.findall(r'^layer (\d+) ticks (\d+) $', output, re.MULTILINE):
        counts[names[int(value)]] += scale * int(ticks)
    layers = ', '.join(f'{name} {count:.2f}' for name, count in counts.items())
    return f'{scale * int(re.match("stack [0-9]+ ticks ([0-9]+) ", output)[1]):.2f} million instructions for a digit: {layers}'


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
