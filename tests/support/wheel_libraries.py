"""What the compiled libraries in a wheel need of the system, for the tests of `make wheel` and `make wheel-arm`."""

import zipfile
from typing import List

from elftools.elf.elffile import ELFFile

LIBRARIES = ('_engine.so', '_mxnet_op.so')
MACHINES = {'x86_64': ('x64', 'ld-linux-x86-64.so.2'), 'aarch64': ('AArch64', 'ld-linux-aarch64.so.1')}  # name in pyelftools, loader
BASELINE = {'libc.so.6', 'libm.so.6', 'libpthread.so.0', 'libstdc++.so.6', 'libgcc_s.so.1', 'libgomp.so.1', '_engine.so'}
# Of Ubuntu 18.04. libgomp has the calls that compilers make as GOMP, and those of programs as OMP.
NEWEST = {'GLIBC': (2, 27), 'GLIBCXX': (3, 4, 24), 'CXXABI': (1, 3, 11), 'GCC': (7, 0, 0), 'GOMP': (4, 5), 'OMP': (4, 5)}


def library_problems(wheel, machine: str) -> List[str]:
    """Return what systems of the platform manylinux_2_27 on a machine, a key of `MACHINES`, could not load, one line each."""
    with zipfile.ZipFile(wheel) as archive:
        return [problem for name in LIBRARIES for problem in _problems(archive, name, *MACHINES[machine])]


def _problems(archive, name, machine, loader):
    with archive.open(f'bmx_melius/{name}') as file:
        elf = ELFFile(file)
        tags = list(elf.get_section_by_name('.dynamic').iter_tags())
        versions = [(symbols.name, one.name) for symbols, all in elf.get_section_by_name('.gnu.version_r').iter_versions() for one in all]
        found = elf.get_machine_arch()
    if found != machine:
        yield f'{name} is for {found}, not for {machine}'
    needed = {tag.needed for tag in tags if tag.entry.d_tag == 'DT_NEEDED'}
    if not needed or not versions:
        yield f'{name} needs nothing'
    for library in needed - BASELINE - {loader}:
        yield f'{name} needs {library}'
    for path in {tag.runpath for tag in tags if tag.entry.d_tag == 'DT_RUNPATH'} - {'$ORIGIN'}:
        yield f'{name} searches for libraries in {path}'
    for library, version in versions:
        kind, _, number = version.partition('_')
        if kind not in NEWEST or tuple(map(int, number.split('.'))) > NEWEST[kind]:
            yield f'{name} needs {version} of {library}'
    if name == '_engine.so' and 'libpthread.so.0' not in needed:  # before glibc 2.34 libc.so.6 has no threads
        yield f'{name} does not name libpthread.so.0, without which threads fail in programs that do not link it'
