"""Programs exported as C, as docs/microcontrollers.md and examples/mcu use them."""

import importlib
import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest
from support.exported_c import FREESTANDING
from support.packed import make_program
from support.paths import ROOT
from support.small_networks import small_network

from bmx_melius.__main__ import main
from bmx_melius.deployment.c_export.c_files import to_c

GUIDE = (ROOT / 'docs' / 'microcontrollers.md').read_text(encoding='utf-8')
MAKEFILE = (ROOT / 'examples' / 'mcu' / 'Makefile').read_text(encoding='utf-8')


@pytest.fixture()
def tool(monkeypatch):
    """The module of `make test-mcu`."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    return importlib.import_module('test_mcu')


def blocks(language):
    return re.findall(rf'^```{language}\n((?:.*\n)*?)```$', GUIDE, re.MULTILINE)


def commands():
    """Return the commands of the guide as lists of arguments."""
    lines = '\n'.join(blocks('text')).replace('\\\n', ' ').splitlines()
    return [shlex.split(line, comments=True) for line in lines if re.match('bmx-melius|make|arm-none-eabi', line)]


@pytest.mark.skipif(not shutil.which('gcc'), reason='the exported C is compiled by gcc')
def test_the_commands_of_the_guide_export_a_network_and_its_example_can_be_compiled(tmp_path, monkeypatch):
    """But for the training, in place of which another network is exported."""
    monkeypatch.chdir(tmp_path)
    small_network().export('net')
    np.save('images', np.random.RandomState(0).randint(0, 256, (4, 3, 8, 8)).astype(np.uint8))
    conversion = ['--input-size', '8', '--resize', '9', '--no-verify']
    assert main(['convert', 'net', 'packed', *conversion]) == main(['convert', 'net', 'int8', *conversion, '--int8', 'images.npy']) == 0
    exports = [command[1:] for command in commands() if command[1] == 'export-c']
    examples = dict(zip(('packed', 'int8'), blocks('c')))
    assert {command[1] for command in exports} == set(examples) and len(exports) > len(examples)
    for command in exports:
        assert main(command) == 0
        (tmp_path / 'firmware' / 'example.c').write_text(
            examples[command[1]] + 'int main(void) { static uint8_t pixels[192]; return classify(pixels) < 0; }\n'
        )
        subprocess.run(['gcc', *FREESTANDING, 'example.c', 'digits.c'], check=True, cwd=tmp_path / 'firmware')
        subprocess.run([tmp_path / 'firmware' / 'a.out'], check=True)


def test_the_guide_and_the_test_train_the_same_network(tool):
    (training,) = [command[2:] for command in commands() if command[1] == 'train']
    flags = dict(zip(training[::2], training[1::2]))
    expected = dict(zip(tool.TRAINING[::2], tool.TRAINING[1::2]))
    assert {key: flags[key] for key in expected} == expected and set(flags) - set(expected) == {'--save-dir'}


def test_each_processor_of_the_example_is_tested(tool):
    assert sorted(re.findall(r'^FLAGS_(\S+) =', MAKEFILE, re.MULTILINE)) == sorted(tool.PROCESSORS)


def test_an_unknown_processor_is_refused_with_those_that_are_known(tool):
    done = subprocess.run(['make', '-f', ROOT / 'examples' / 'mcu' / 'Makefile', 'PROCESSOR=z80'], stderr=subprocess.PIPE, text=True)
    assert done.returncode and 'PROCESSOR must be one of' in done.stderr and all(name in done.stderr for name in tool.PROCESSORS)


@pytest.mark.skipif(not shutil.which('clang'), reason='needs Clang')
def test_clang_with_a_floating_point_unit_is_refused_unless_it_uses_its_instruction(tmp_path):
    for file, text in to_c(make_program(), [0], 'net').files.items():
        (tmp_path / file).write_text(text)
    processor = ['--target=arm-none-eabi', '-mcpu=cortex-m4', '-mfpu=fpv4-sp-d16', '-mfloat-abi=hard', '-mthumb']
    build = ['clang', *FREESTANDING, *processor, '-c', 'net.c']
    done = subprocess.run(build, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode and '#error "give -fno-math-errno' in done.stderr
    subprocess.run([*build, '-fno-math-errno'], check=True, cwd=tmp_path)
    assert b'fmaf' not in (tmp_path / 'net.o').read_bytes()


def test_the_call_before_each_layer_has_the_number_that_the_export_prints():
    network = to_c(make_program(), [0], 'net')
    called = [int(number) for number in re.findall(r'BMX_LAYER\((\d+)\);', network.files['net.c'])]
    assert called == sorted(set(called)) and {layer.number for layer in network.layers if layer.weights} <= set(called)
