"""Programs that use sessions: in Python with an installed MXNet or without its import, in C and in C++, and their memory."""

import importlib.util
import pathlib
import shutil
import subprocess

import cv2
import numpy as np
import pytest
from support.engines import needs_engine
from support.packed import chain, conv, make_image, make_program, window, write_packed
from support.paths import ROOT
from support.python_programs import run_python

import bmx_melius as bmx
from bmx_melius.deployment.runtime import engine

pytest_plugins = ['support.packed_networks']  # its fixtures

EXAMPLES = [(['gcc', '-std=c99'], 'examples/c/run_packed.c'), (['g++', '-std=c++17'], 'examples/cpp/run_packed.cc')]


def run_light(program, *arguments, **environment):
    """Run Python code in a process that is to do without MXNet, though it is installed; return what it printed."""
    return run_python('import sys\n' + program, *arguments, **environment).stdout


def test_a_program_can_run_sessions_without_importing_an_installed_mxnet(prefix):
    printed = run_light(
        'import numpy as np, bmx_melius as bmx\n'
        'print([output.shape for output in bmx.Session(sys.argv[1])(np.zeros((2, 5, 8, 6), np.float32))])\n'
        "assert 'mxnet' not in sys.modules\n"
        'from bmx_melius.nn import marks, quantizers\n',
        prefix,
    )
    assert printed == '[(2, 7), (2, 40, 4, 3)]\n'


@pytest.mark.parametrize('imports', ['import mxnet as mx, bmx_melius', 'import bmx_melius, mxnet as mx'])
def test_mxnet_reads_packed_files_and_knows_radam_whichever_is_imported_first(prefix, imports):
    printed = run_light(
        f'{imports}\n'
        "block = mx.gluon.SymbolBlock.imports(sys.argv[1] + '-symbol.json', ['data0'], sys.argv[1] + '-0000.params')\n"
        "print(type(mx.optimizer.create('radam')).__name__, block(mx.nd.zeros((2, 5, 8, 6)))[0].shape)\n",
        prefix,
    )
    assert printed == 'RAdam (2, 7)\n'


@pytest.mark.parametrize('arguments', [['--help'], ['--version'], ['convert', '--help'], ['bench', 'net', '--repetitions', '0']])
def test_the_console_script_does_not_import_mxnet_for_help_or_a_wrong_argument(arguments):
    run_light(
        'from bmx_melius.__main__ import main\n'
        'try:\n    main()\nexcept SystemExit:\n    pass\n'
        "assert 'bmx_melius' in sys.modules and 'mxnet' not in sys.modules\n",
        *arguments,
    )


def test_names_are_loaded_when_they_are_first_used(prefix):
    run_light(
        'import bmx_melius as bmx\n'
        "assert 'bmx_melius.nn.layers' not in sys.modules\n"
        "assert 'QConv2D' in dir(bmx) and 'mxnet' in sys.modules\n"
        "assert bmx.QConv2D.__module__ == 'bmx_melius.nn.layers'\n"
        'from bmx_melius import *\n'
        'assert QDense is bmx.QDense and Session is bmx.Session\n',
    )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'bmx_melius' has no attribute 'QConv4D'"):
        bmx.QConv4D  # noqa: B018


def test_modules_that_have_moved_are_found_by_their_former_names():
    run_light(
        'from bmx_melius.methods.bnn import clip_latent_weights\n'
        'from bmx_melius.quantizers import BINARY\n'
        'import bmx_melius.channelwise, bmx_melius.nn.channelwise, bmx_melius.nn.methods.bnn\n'
        'assert clip_latent_weights is bmx_melius.nn.methods.bnn.clip_latent_weights\n'
        'assert bmx_melius.channelwise is bmx_melius.nn.channelwise is sys.modules["bmx_melius.channelwise"]\n'
        "assert bmx_melius.channelwise.__spec__.name == 'bmx_melius.nn.channelwise'\n",
    )


def test_the_console_script_reads_packed_files_and_knows_the_zoo(tmp_path):
    write_packed(tmp_path / 'net', make_program(channels=3), [0])
    cv2.imwrite(str(tmp_path / 'image.png'), np.zeros((9, 9, 3), np.uint8))
    printed = run_light(
        'from bmx_melius.__main__ import main\n'
        'for arguments in sys.argv[1:4], sys.argv[4:]:\n'
        "    assert main([*arguments, '--input-size', '32', '--json']) == 0\n",
        *('predict', tmp_path / 'net', tmp_path / 'image.png'),
        *('summary', 'meliusnet22', '--initial-layers=thumbnail'),
    )
    assert '"predictions"' in printed and '"bops"' in printed


@pytest.mark.skipif(bool(engine.missing()) or not shutil.which('g++'), reason='no compiled engine, or no compiler')
@pytest.mark.parametrize('compiler,source', EXAMPLES, ids=['c', 'cpp'])
def test_the_examples_in_c_and_cpp_print_the_output_of_a_session(prefix, tmp_path, compiler, source):
    x = make_image(1)
    x.tofile(tmp_path / 'x.bin')
    package = pathlib.Path(importlib.util.find_spec('bmx_melius').origin).parent
    program = tmp_path / 'run_packed'
    library = ['-I', package / 'csrc' / 'api', package / '_engine.so', f'-Wl,-rpath,{package}']
    subprocess.run([*compiler, '-Wall', '-Wextra', '-Wpedantic', '-Werror', ROOT / source, *library, '-o', program], check=True)
    printed = subprocess.run([program, f'{prefix}-0000.params', tmp_path / 'x.bin'], check=True, stdout=subprocess.PIPE, text=True).stdout
    numbers = np.array(printed.split(), dtype=np.float32)
    expected = bmx.Session(prefix)(x)[0].ravel()
    np.testing.assert_allclose(numbers, expected, rtol=1e-5)
    failed = subprocess.run([program, tmp_path / 'x.bin', tmp_path / 'x.bin'], stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 1 and len(failed.stderr.splitlines()) == 1


RESIDENT = """
import os
import bmx_melius

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')

first = bmx_melius.Session(sys.argv[1])
before = resident()
others = [bmx_melius.Session(sys.argv[1]) for _ in range(10)]
print(resident() - before)
"""


@needs_engine
def test_sessions_of_one_network_share_its_weights(tmp_path):
    weight = np.random.randn(512, 512, 3, 3).astype(np.float32)
    write_packed(tmp_path / 'net', chain((512, 4, 4), conv(weight, **window(3, pad=1))))
    assert int(run_light(RESIDENT, tmp_path / 'net')) < 2 * weight.nbytes  # malloc keeps what a session needs while it reads the file
