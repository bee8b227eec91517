"""What tools and benchmarks take from examples/mcu/Makefile."""

import shutil
import sys

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT / 'tools'))
import mcu_emulator  # noqa: E402  the path comes first

pytestmark = pytest.mark.skipif(not shutil.which('make'), reason='make is not installed')


def test_flags_and_memory_of_a_processor_are_those_of_the_makefile(tmp_path):
    text = mcu_emulator.MAKEFILE.read_text()
    flags = mcu_emulator.value_of('FLAGS_cortex-m4', tmp_path)
    assert flags[0] == '-mcpu=cortex-m4' and f'FLAGS_cortex-m4 = {" ".join(flags)}\n' in text
    memory = [mcu_emulator.value_of('MEMORY', tmp_path, 'PROCESSOR=cortex-m0', *more) for more in ((), mcu_emulator.LARGE_CORTEX_M0)]
    assert f'MEMORY_cortex-m0 = {" ".join(memory[0])}\n' in text and memory[1] == mcu_emulator.value_of('MEMORY', tmp_path)


def test_a_program_that_is_there_is_emulated_with_counted_instructions(tmp_path):
    (tmp_path / 'qemu').write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / 'qemu').chmod(0o755)
    variables = ['PROCESSOR=cortex-m0', *mcu_emulator.LARGE_CORTEX_M0, mcu_emulator.COUNTED, f'EMULATOR={tmp_path / "qemu"}']
    printed = mcu_emulator.make('emulate', tmp_path, *variables)
    devices = '-display none -serial none -monitor none -semihosting-config enable=on,target=native'
    assert printed == f'-M mps2-an385 {devices} -icount shift=0 -kernel {tmp_path}/firmware.elf\n'
