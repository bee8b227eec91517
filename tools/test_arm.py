"""Tests of the engine on aarch64 under emulation: ``make test-arm``.

Everything is cross-compiled, run by qemu, and compared with this machine. Any difference ends it with an error.

- The engine compiled by GCC and by Clang, which is the compiler of Android (`other_machine`). GCC's is the shared library that CMake
  builds with its toolchain file and installs, found by the CMake project of the examples.
- ``bmx-classify``, with libjpeg and libpng of Debian for arm64, unpacked into ``build/aarch64-libraries``: the inputs that it makes of JPEG
  and PNG files, and their classes, equal `Session.classify`.
"""

import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np
import PIL.Image
from commands import install_tools, output_of, run_main
from debian_packages import unpack
from native_build import INSTRUCTION_SETS
from other_machine import ROOT, Machine, check_kernels, check_networks, check_peaks
from support.classifiers import write_classifier
from support.static_library import weak_symbols

import bmx_melius as bmx
from bmx_melius.errors import UserError

ARM = Machine(
    name='aarch64',
    compilers={'gcc': ['aarch64-linux-gnu-g++'], 'clang': ['clang++', '--target=aarch64-linux-gnu']},  # Clang needs the libraries of GCC
    flags=['-static'],
    launcher=['qemu-aarch64'],
    instruction_sets=('reference', 'neon', 'dotprod', 'i8mm'),
)
TOOLS = {
    **{'aarch64-linux-gnu-g++': 'g++-aarch64-linux-gnu', 'aarch64-linux-gnu-gcc': 'gcc-aarch64-linux-gnu', 'clang++': 'clang'},
    **{'qemu-aarch64': 'qemu-user', 'cmake': 'cmake', 'make': 'make'},
}
LIBRARIES = ['libjpeg-dev', 'libpng-dev', 'libstdc++6']  # and what they depend on
TOOLCHAIN = ROOT / 'tools' / 'cmake' / 'aarch64-linux-gnu.cmake'
SPEC = bmx.InputSpec(size=48, resize=56)
NAMES = ['ant', 'bee', 'cat', 'dog', 'elk']

# Processors in the emulator -> their instruction sets.
AVAILABLE = {'cortex-a53': 'reference neon', 'cortex-a76': 'reference neon dotprod', 'max': 'reference neon dotprod i8mm'}


def main():
    """Run all checks. Raises `UserError` at the first difference."""
    install_tools(TOOLS)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        root = unpack(LIBRARIES, 'arm64', ROOT / 'build' / 'aarch64-libraries')
        installed = install_library(folder, root)
        weak = weak_symbols(installed / 'lib' / 'libbmx_melius.a', INSTRUCTION_SETS, nm='aarch64-linux-gnu-nm')
        if weak:
            raise UserError(f'files for one instruction set have weak symbols: {"; ".join(weak)}')
        check_classifier(installed / 'bin' / 'bmx-classify', folder, root)
        check_kernels(ARM, folder)
        check_peaks(ARM, folder)
        header = f'-I{ROOT / "bmx_melius" / "csrc" / "api"}'
        by_clang = ARM.build(folder, 'examples/cpp/run_packed.cc', None, header, compiler='clang')
        programs = {'CMake and GCC': build_example(installed, folder, root), 'Clang': [*ARM.launcher, by_clang]}

        def run(params, image):
            for compiler, command in programs.items():
                for instruction_set in ARM.instruction_sets:
                    scores = output_of([*command, params, image], {**os.environ, 'BMX_MELIUS_ISA': instruction_set})
                    yield f'{instruction_set} by {compiler}', scores

        check_networks(folder, run)
        check_choice(by_clang, folder / 'packed-0000.params', folder / 'image')
    print('aarch64: all results have the bits of this machine')


def cmake(source, build, root, *options):
    """Configure and build a project for aarch64 with the libraries in `root`."""
    output_of(['cmake', '-S', source, '-B', build, f'-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}', f'-DCMAKE_SYSROOT={root}', *options])
    output_of(['cmake', '--build', build, '--parallel', len(os.sched_getaffinity(0))])


def install_library(folder, root):
    """Build the library and bmx-classify by CMake and install them; return the folder of the installation."""
    cmake(ROOT, folder / 'build', root, '-DBMX_CLASSIFY=ON')
    output_of(['cmake', '--install', folder / 'build', '--prefix', folder / 'installed'])
    return folder / 'installed'


def build_example(installed, folder, root):
    """Build the examples with the installed library; return the command that runs the one in C++."""
    cmake(ROOT / 'examples', folder / 'examples', root, f'-Dbmx_melius_DIR={installed / "lib" / "cmake" / "bmx_melius"}')
    return [*ARM.launcher, '-L', root, folder / 'examples' / 'run_packed_cpp']


def check_choice(program, *arguments):
    """Require that a processor gets the instruction sets it has: an unknown one is refused with their names."""
    for processor, sets in AVAILABLE.items():
        command = ['qemu-aarch64', '-cpu', processor, program, *arguments]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**os.environ, 'BMX_MELIUS_ISA': 'none'})
        if not done.stderr.strip().endswith(f'this build and this CPU have {sets}'):
            raise UserError(f'{processor} should have {sets}: {done.stderr.strip()}')
    print('choice of the instruction set: ok', flush=True)


def check_classifier(program, folder, root):
    """Compare inputs and classes that bmx-classify finds with a session's. Raises `UserError` if they differ."""
    images = make_images(folder)
    prefix = write_classifier(folder / 'classifier', SPEC, NAMES)
    command = [*ARM.launcher, '-L', root, program]
    session = bmx.Session(prefix)
    found = json.loads(output_of([*command, '--json', '--top', len(NAMES), prefix, *images]))['predictions']
    for path, row in zip(images, found):
        output_of([*command, '--save-input', folder / 'input.bin', prefix, path])
        if (folder / 'input.bin').read_bytes() != SPEC.array(path).tobytes():
            raise UserError(f'bmx-classify on aarch64 gives the network another input for {path.name}')
        classes, expected = [(one['name'], one['probability']) for one in row['top']], session.classify(path)
        if [name for name, _ in classes] != [name for name, _ in expected] or not np.allclose(
            [probability for _, probability in classes], [probability for _, probability in expected], rtol=1e-12
        ):
            raise UserError(f'bmx-classify on aarch64 finds {classes} in {path.name}; a session {expected}')
    print(f'bmx-classify, {len(images)} images: ok', flush=True)


def make_images(folder):
    """Write JPEG and PNG files of several kinds; return their paths."""
    random, images = np.random.RandomState(0), []
    for name, size, mode, options in [
        ('colours.png', (97, 75), 'RGB', {}),
        ('gray.png', (60, 88), 'L', {}),
        ('palette.png', (64, 64), 'P', {}),
        *((f'sampled{number}.jpg', (131, 90), 'RGB', {'subsampling': number, 'quality': 80}) for number in range(3)),
        ('progressive.jpg', (90, 131), 'RGB', {'progressive': True}),
        ('gray.jpg', (75, 97), 'L', {}),
        ('inks.jpg', (75, 97), 'CMYK', {}),
    ]:
        coarse = PIL.Image.fromarray(random.randint(0, 256, (9, 9, 3)).astype(np.uint8)).resize(size, PIL.Image.BICUBIC)
        noise = random.randint(-30, 31, (size[1], size[0], 3))
        PIL.Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).convert(mode).save(folder / name, **options)
        images.append(folder / name)
    return images


if __name__ == '__main__':
    run_main(main)
