"""What the files of the engine in a static library share, for the tests of `make test-c` and `make test-arm`."""

import subprocess
from typing import Iterable, List


def weak_symbols(archive, instruction_sets: Iterable[str], nm: str = 'nm') -> List[str]:
    """Return lines about weak symbols in the files that are compiled for one of the instruction sets.

    The linker keeps one copy of a weak symbol: a copy from a file for AVX-512 would end programs on other processors.
    """
    endings = tuple(f'_{name}.cc.o:' for name in instruction_sets)
    listed = subprocess.run([nm, '--demangle', str(archive)], stdout=subprocess.PIPE, text=True, check=True).stdout
    members = [member.strip().splitlines() for member in listed.split('\n\n')]
    special = [member for member in members if member[0].endswith(endings)]
    assert special, f'{archive} has no files that end in {endings}'
    return [line for member in special for line in member if line[17:19] in ('W ', 'V ', 'u ') and 'DW.ref' not in line]
