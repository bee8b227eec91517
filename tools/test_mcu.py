"""Tests of exported C on Cortex-M processors under emulation: ``make test-mcu``.

A small MeliusNet is trained on the digits, packed and exported as C. The program runs on a Cortex-M3 and a Cortex-M7 in QEMU on all test
digits: the bits of every binary layer and the logits must be those of the engine, and memory must be what the export printed. Any
difference ends it with an error.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

import numpy as np  # noqa: E402
from exported_c import bits_of_layers  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.data.small_images import open_digits  # noqa: E402
from bmx_melius.deployment.runtime.engine import require_engine  # noqa: E402
from bmx_melius.deployment.runtime.packed_files import read_packed  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.exported import Exported  # noqa: E402

COMPILER, EMULATOR, SIZES = 'arm-none-eabi-gcc', 'qemu-system-arm', 'arm-none-eabi-size'
PACKAGES = ['gcc-arm-none-eabi', 'qemu-system-arm']  # on Debian and Ubuntu
OPTIONS = {'block_numbers': [2, 2], 'transitions': [48], 'growth_rate': 32, 'init_features': 32}
TRAINING = ['--model', 'meliusnet_flex', '--dataset', 'digits', '--seed', '1', '--batch-size', '32', '--model-options', json.dumps(OPTIONS)]
REQUIRED = 0.9  # top-1 accuracy, so that the network is one that has learned
NAME = 'digits'
MOST_CODE = 16 << 10
CONSTANTS_TOLERANCE = 256  # bytes of small constants that the compiler moves from the code or into it
CODE_TOLERANCE = 0.25  # of the estimate, with -Os on the Cortex-M3
TICK = 40  # instructions for each tick of the timer, of 25 MHz, if an instruction takes 1 ns of the emulator's time
SECONDS = 600  # of the emulator at most

# Processor -> machine of QEMU and flags of the compiler.
PROCESSORS = {
    'Cortex-M3': ('mps2-an385', ['-mcpu=cortex-m3']),
    'Cortex-M7': ('mps2-an500', ['-mcpu=cortex-m7', '-mfpu=fpv5-sp-d16', '-mfloat-abi=hard']),
}
FREESTANDING = ['-std=c99', '-Wall', '-Wextra', '-Werror', '-ffreestanding', '-mthumb']


def main():
    """Run all checks. Raises `UserError` at the first difference."""
    require_engine()
    install_tools()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        packed, facts = export(folder)
        images, logits, bits = expected(packed)
        for processor, (machine, flags) in PROCESSORS.items():
            for level in ('-Os', '-O2'):
                build(folder, [level, *flags])
                output = run(folder, machine, images)
                check_results(folder, logits, bits)
                print(f'{processor} {level}: {check_memory(folder, facts, output, level)}', flush=True)
    print(
        f'{len(images)} digits: the bits of all {facts["binary_layers"]} binary layers, {bits.shape[1]} words for each digit, and all '
        'logits are those of the engine'
    )


def install_tools():
    """Install the cross compiler and the emulator if they are missing. Raises `UserError` where that is not possible."""
    if shutil.which(COMPILER) and shutil.which(EMULATOR):
        return
    if os.geteuid() or not shutil.which('apt-get'):
        raise UserError(f'{COMPILER} and {EMULATOR} are needed (on Debian and Ubuntu: apt-get install {" ".join(PACKAGES)})')
    for command in (['update'], ['install', '--yes', '--no-install-recommends', *PACKAGES]):
        subprocess.run(['apt-get', '-qq', *command], stdout=subprocess.DEVNULL, check=True)


def export(folder):
    """Train, pack and export the network. Return the prefix of the packed files, and what the export printed."""
    python = [sys.executable, '-W', 'ignore']
    run_command([*python, ROOT / 'train_imagenet.py', *TRAINING, '--save-dir', folder / 'run'])
    run_command([*python, '-m', 'bmx_melius', 'convert', folder / 'run' / 'meliusnet_flex', folder / 'packed'])
    text = run_command([*python, '-m', 'bmx_melius', 'export-c', folder / 'packed', folder, '--name', NAME, '--json'])
    facts = json.loads(text)
    facts['binary_layers'] = sum(layer['operation'] == 'binary_conv' for layer in facts['layers'])
    return folder / 'packed', facts


def expected(packed):
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


def build(folder, flags):
    """Compile the network and the program that runs it."""
    (folder / 'trace.h').write_text('void trace(const void* words, unsigned long count);\n')
    traced = ['-DBMX_TRACE(value,words,count)=trace(words,count)', '-include', folder / 'trace.h']
    run_command([COMPILER, *FREESTANDING, *flags, *traced, '-c', folder / f'{NAME}.c', '-o', folder / 'network.o'])
    upper = NAME.upper()
    defined = {'NETWORK_HEADER': f'"{NAME}.h"', 'NETWORK_RUN': f'{NAME}_run'}
    defined.update({f'{side}_SIZE': f'{upper}_{side}_SIZE' for side in ('INPUT', 'OUTPUT')})
    macros = [f'-D{key}={value}' for key, value in defined.items()]
    freestanding = [flag for flag in FREESTANDING if not flag.startswith('-std')] + ['-std=gnu99', '-ffunction-sections']
    run_command([COMPILER, *freestanding, *flags, *macros, f'-I{folder}', '-c', ROOT / 'tools' / 'mcu' / 'run.c', '-o', folder / 'run.o'])
    objects = [folder / 'run.o', folder / 'network.o', '-lgcc']
    script = ['-T', ROOT / 'tools' / 'mcu' / 'mps2.ld', f'-Wl,-Map={folder / "network.map"}', '-Wl,--gc-sections']
    run_command([COMPILER, '-mthumb', *flags, '-nostdlib', '-nostartfiles', *script, *objects, '-o', folder / 'network.elf'])


def run(folder, machine, images):
    """Run the program in the emulator and return what it printed."""
    images.astype('<f4').tofile(folder / 'images.bin')
    for name in ('outputs.bin', 'bits.bin'):
        (folder / name).unlink(missing_ok=True)
    quiet = ['-display', 'none', '-serial', 'none', '-monitor', 'none']
    semihosting = ['-semihosting-config', 'enable=on,target=native']
    return run_command([EMULATOR, '-M', machine, *quiet, *semihosting, '-icount', 'shift=0', '-kernel', folder / 'network.elf'], folder)


def check_results(folder, logits, bits):
    """Compare the bits of every layer and the logits with those of the engine."""
    words = np.fromfile(folder / 'bits.bin', '<u4')
    if words.size != bits.size or not np.array_equal(words.reshape(bits.shape), bits):
        raise UserError('the bits of binary layers differ from those of the engine')
    outputs = np.fromfile(folder / 'outputs.bin', '<f4')
    if outputs.size != logits.size or not np.array_equal(outputs.reshape(logits.shape).view(np.uint32), logits.view(np.uint32)):
        raise UserError('the logits differ from those of the engine')


def check_memory(folder, facts, output, level):
    """Compare the memory with what the export printed; return a description."""
    stack, ticks = map(int, re.fullmatch(r'stack (\d+) ticks (\d+) ', output.strip('\n')).groups())
    sections = sections_of(folder / 'network.elf')
    arena = sections_of(folder / 'network.o')['.bss']
    if arena != facts['arena_bytes']:
        raise UserError(f'the network has {arena} bytes of static memory; the export printed {facts["arena_bytes"]}')
    if stack > facts['stack_bytes']:
        raise UserError(f'a run needs {stack} bytes of stack; the export printed {facts["stack_bytes"]}')
    own = sum(size for name, size in sections_of(folder / 'run.o').items() if name.startswith('.text'))
    code = sections['.text'] - own
    if code > MOST_CODE:
        raise UserError(f'the code has {code} bytes, more than {MOST_CODE}')
    if level == '-Os' and code > facts['code_bytes'] * (1 + CODE_TOLERANCE):
        raise UserError(f'the code has {code} bytes; the export estimated {facts["code_bytes"]}')
    weights = sections_of(folder / 'network.o')['.rodata']
    if abs(weights - facts['weights_bytes']) > CONSTANTS_TOLERANCE:
        raise UserError(f'the constants have {weights} bytes; the export printed {facts["weights_bytes"]}')
    return (
        f'{code:,} bytes of code (estimated for -Os: {facts["code_bytes"]:,}), {weights:,} of constants, {arena:,} of static memory, '
        f'{stack:,} of stack (at most {facts["stack_bytes"]:,}); {TICK * ticks / 1e6:.1f} million instructions for a digit'
    )


def sections_of(path):
    """Return the sizes of the sections of an object or program."""
    rows = (line.split() for line in run_command([SIZES, '-A', path]).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}


def run_command(command, folder=None):
    """Run a command and return its output. Raises `UserError` if it fails."""
    command = list(map(str, command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder or ROOT, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(f'{command[0]} has not ended within {SECONDS} seconds') from error
    if done.returncode:
        raise UserError(f'{" ".join(command)} failed (exit status {done.returncode}): {(done.stdout + done.stderr).strip()}')
    return done.stdout + (done.stderr if command[0] == EMULATOR else '')


if __name__ == '__main__':
    try:
        main()
    except UserError as error:
        sys.exit(f'error: {error}')
