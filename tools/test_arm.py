"""Tests of the engine on aarch64 under emulation: ``make test-arm``.

Everything is cross-compiled, run by qemu, and compared with this machine. Any difference is an error.

The parts can be run one by one: ``--list`` names them.

- The engine compiled by GCC and by Clang, which is the compiler of Android (`other_machine`). GCC's is the shared library that CMake
  builds with its toolchain file and installs, found by the CMake project of the examples.
- ``bmx-classify``, with libjpeg and libpng of Debian for arm64, unpacked into ``build/aarch64-libraries``: the inputs that it makes of JPEG
  and PNG files, and their classes, equal `Session.classify`.
"""

import functools
import json
import os
import subprocess

import numpy as np
import PIL.Image
from commands import output_of, run_main, run_parts
from debian_packages import unpack
from native_build import INSTRUCTION_SETS
from other_machine import ROOT, Machine, check_peaks, check_programs, kernel_parts, network_parts
from support.classifiers import write_classifier
from support.packed import make_image, make_program, write_packed
from support.static_library import weak_symbols

import bmx_melius as bmx
from bmx_melius.errors import UserError
from bmx_melius.forking import lazy_attribute

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


def parts_in(folder):
    """Return the parts of the test (`commands.run_parts`)."""
    built = Built(folder)
    return {
        'library': built.check_symbols,
        'bmx-classify': built.check_classifier,
        **kernel_parts(ARM, folder),
        'peaks': functools.partial(check_peaks, ARM, folder),
        **network_parts(folder, built.run),
        'random programs': functools.partial(check_programs, folder, built.run),
        'choice': built.check_choice,
    }


class Built:
    """What the parts build when the first of them needs it, in a folder: the installed library, and programs that run networks."""

    def __init__(self, folder):
        self.folder = folder

    @lazy_attribute
    def root(self):
        """The folder with the libraries of Debian."""
        return unpack(LIBRARIES, 'arm64', ROOT / 'build' / 'aarch64-libraries')

    @lazy_attribute
    def installed(self):
        """The folder of the installation of the library and bmx-classify by CMake."""
        self.cmake(ROOT, self.folder / 'build', '-DBMX_CLASSIFY=ON')
        output_of(['cmake', '--install', self.folder / 'build', '--prefix', self.folder / 'installed'])
        return self.folder / 'installed'

    @lazy_attribute
    def by_cmake(self):
        """The command of the example in C++, built with the installed library."""
        package = self.installed / 'lib' / 'cmake' / 'bmx_melius'
        self.cmake(ROOT / 'examples', self.folder / 'examples', f'-Dbmx_melius_DIR={package}')
        return [*ARM.launcher, '-L', self.root, self.folder / 'examples' / 'run_packed_cpp']

    @lazy_attribute
    def by_clang(self):
        """The example in C++ with the engine, compiled by Clang."""
        header = f'-I{ROOT / "bmx_melius" / "csrc" / "api"}'
        return ARM.build(self.folder, 'examples/cpp/run_packed.cc', None, header, compiler='clang')

    def cmake(self, source, build, *options):
        """Configure and build a project for aarch64 with the libraries of Debian."""
        output_of(['cmake', '-S', source, '-B', build, f'-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}', f'-DCMAKE_SYSROOT={self.root}', *options])
        output_of(['cmake', '--build', build, '--parallel', len(os.sched_getaffinity(0))])

    def check_symbols(self):
        """Require that files for one instruction set share no functions with others."""
        weak = weak_symbols(self.installed / 'lib' / 'libbmx_melius.a', INSTRUCTION_SETS, nm='aarch64-linux-gnu-nm')
        if weak:
            raise UserError(f'files for one instruction set have weak symbols: {"; ".join(weak)}')

    def run(self, params, image):
        """Run a packed network by both compilers with each instruction set; yield how, and the scores."""
        for compiler, command in {'CMake and GCC': self.by_cmake, 'Clang': [*ARM.launcher, self.by_clang]}.items():
            for instruction_set in ARM.instruction_sets:
                scores = output_of([*command, params, image], {**os.environ, 'BMX_MELIUS_ISA': instruction_set})
                yield f'{instruction_set} by {compiler}', scores

    def check_choice(self):
        """Require that a processor gets the instruction sets it has: an unknown one is refused with their names."""
        write_packed(self.folder / 'packed', make_program())
        make_image(batch=1).tofile(self.folder / 'image')
        files = self.folder / 'packed-0000.params', self.folder / 'image'
        for processor, sets in AVAILABLE.items():
            command = ['qemu-aarch64', '-cpu', processor, self.by_clang, *files]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**os.environ, 'BMX_MELIUS_ISA': 'none'})
            if not done.stderr.strip().endswith(f'this build and this CPU have {sets}'):
                raise UserError(f'{processor} should have {sets}: {done.stderr.strip()}')

    def check_classifier(self):
        """Compare inputs and classes that bmx-classify finds with a session's."""
        images = make_images(self.folder)
        prefix = write_classifier(self.folder / 'classifier', SPEC, NAMES)
        command = [*ARM.launcher, '-L', self.root, self.installed / 'bin' / 'bmx-classify']
        session = bmx.Session(prefix)
        found = json.loads(output_of([*command, '--json', '--top', len(NAMES), prefix, *images]))['predictions']
        for path, row in zip(images, found):
            output_of([*command, '--save-input', self.folder / 'input.bin', prefix, path])
            if (self.folder / 'input.bin').read_bytes() != SPEC.array(path).tobytes():
                raise UserError(f'bmx-classify on aarch64 gives the network another input for {path.name}')
            classes, expected = [(one['name'], one['probability']) for one in row['top']], session.classify(path)
            if [name for name, _ in classes] != [name for name, _ in expected] or not np.allclose(
                [probability for _, probability in classes], [probability for _, probability in expected], rtol=1e-12
            ):
                raise UserError(f'bmx-classify on aarch64 finds {classes} in {path.name}; a session {expected}')


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
    run_main(run_parts, __doc__, TOOLS, parts_in)
