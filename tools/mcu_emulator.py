"""Programs for microcontrollers in QEMU. ``examples/mcu/Makefile`` has processors and boards, and flags of compiler and emulator."""

import pathlib

from commands import output_of

MAKEFILE = pathlib.Path(__file__).resolve().parent.parent / 'examples' / 'mcu' / 'Makefile'
COUNTED = 'EMULATOR_FLAGS=-icount shift=0'  # an instruction takes 1 ns of the emulator's time
# The Cortex-M0 with the board of the Cortex-M3, which has more memory.
LARGE_CORTEX_M0 = ['MACHINE_cortex-m0=mps2-an385', 'MEMORY_cortex-m0=0x00000000 4M 0x20000000 4M']
_SECONDS = 600  # for a command at most


def make(target, folder, *variables):
    """Make a target of the file with these variables and the programs in a folder, and return what was printed."""
    return output_of(['make', '-s', '-f', MAKEFILE, target, f'OUT={folder}', *variables], folder=folder, seconds=_SECONDS)


def value_of(name, folder, *variables):
    """Return the value of a variable of the file, a list of words."""
    return make('show', folder, f'SHOWN={name}', *variables).split()
