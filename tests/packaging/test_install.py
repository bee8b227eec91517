"""Building and installing: with a compiler, without one, from what is shipped."""

import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from support.paths import ROOT
from support.terminals import in_terminal

from bmx_melius.files.stored_networks import read_table

SHIPPED = ('bmx_melius', 'model_zoo', 'tools', 'train_imagenet.py', 'setup.py', 'pyproject.toml', 'README.md', 'MANIFEST.in', 'LICENSE')
UNINTERESTING = shutil.ignore_patterns('*.so', '__pycache__')

needs_wheel = pytest.mark.skipif(not importlib.util.find_spec('wheel'), reason='needs the package wheel')


@pytest.fixture()
def source(tmp_path):
    """A copy of what a build needs, with nothing built in it."""
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / 'source' / name, ignore=UNINTERESTING)
        else:
            shutil.copy(ROOT / name, tmp_path / 'source')
    return tmp_path / 'source'


def set_up(source, *arguments, **environment):
    """Run setup.py; return the finished process."""
    environment = {**{name: value for name, value in os.environ.items() if name != 'CXX'}, **environment}
    return subprocess.run(
        [sys.executable, '-W', 'ignore', 'setup.py', '--quiet', *arguments], cwd=source, env=environment, text=True, capture_output=True
    )


def libraries(folder):
    return sorted(path.name for path in folder.rglob('*.so'))


def make_script(folder, content, name='g++'):
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f'#!/bin/sh\n{content}\n')
    script.chmod(0o755)
    return str(folder)


def test_without_a_compiler_a_build_succeeds_and_says_what_is_missing(source, tmp_path):
    (tmp_path / 'empty').mkdir()
    done = set_up(source, 'build_ext', '--inplace', PATH=str(tmp_path / 'empty'))
    assert done.returncode == 0 and libraries(source) == []
    (warning,) = done.stderr.splitlines()
    assert warning.startswith('warning: ') and 'apt-get install g++' in warning and 'run on NumPy' in warning


def test_a_compiler_that_is_named_and_missing_is_named(source):
    done = set_up(source, 'build_ext', '--inplace', CXX='no-such-compiler -m64')
    assert done.returncode == 0 and libraries(source) == []
    assert 'C++ compiler no-such-compiler, which the environment variable CXX names, is not there' in done.stderr


def test_a_compiler_that_fails_is_quoted(source, tmp_path):
    path = make_script(tmp_path / 'bin', 'echo "x.cc:1: error: this is no good" >&2; exit 1')
    done = set_up(source, 'build_ext', '--inplace', PATH=f'{path}:{os.environ["PATH"]}')
    assert done.returncode == 0 and libraries(source) == []
    assert 'warning: ' in done.stderr.splitlines()[-1] and 'the compiler failed (x.cc:1: error: this is no good)' in done.stderr


# Writes what it is called with to the file calls, and makes an empty result. It does not know the flags in $UNKNOWN, and compiles for the
# processors whose macros are in $MACROS.
RECORDING = """
for argument; do
    [ "$argument" = -dM ] && printf '#define %s 1\\n' $MACROS
    case " $UNKNOWN " in *" $argument "*) exit 1 ;; esac
    [ "$previous" = -o ] && : > "$argument"
    previous=$argument
done
echo "$@" >> "$CALLS"
"""


ALL_PROCESSORS = '__x86_64__ __aarch64__ __wasm__'


def compile_with(source, tmp_path, unknown='', macros=ALL_PROCESSORS, command=('build_ext', '--inplace')):
    """Build with a compiler that only notes the calls; return the words of each call by the object or library it makes."""
    path, calls = make_script(tmp_path / 'bin', RECORDING), tmp_path / 'calls'
    calls.write_text('')
    environment = {'PATH': f'{path}:{os.environ["PATH"]}', 'CALLS': str(calls), 'UNKNOWN': unknown, 'MACROS': macros}
    done = set_up(source, *command, **environment)
    assert done.returncode == 0 and (done.stderr == '' or command[0] != 'build_ext'), done.stderr
    calls = [line.split() for line in calls.read_text().splitlines() if ' -o ' in line]
    return {pathlib.Path(call[call.index('-o') + 1]).name: call for call in calls}


def test_each_file_gets_the_flags_of_its_instruction_set_and_no_other(source, tmp_path):
    calls = compile_with(source, tmp_path)
    objects = {'dispatch.o', 'binary_avx2.o', 'binary_avx512.o', 'binary_amx.o', 'binary_neon.o', 'binary_dotprod.o', 'int8_i8mm.o'}
    assert set(calls) >= {'_engine.so.new', '_mxnet_op.so.new', *objects}
    for name, call in calls.items():
        ending, x86 = name.partition('.')[0].rpartition('_')[2], {'-mavx2', '-mavx512vpopcntdq', '-mamx-int8'}
        avxvnni, avx512 = {'-mavx2', '-mavxvnni'}, {'-mavx2', '-mavx512vpopcntdq'}
        arm = {'neon': {'-march=armv8-a'}, 'dotprod': {'-march=armv8.2-a+dotprod'}, 'i8mm': {'-march=armv8.2-a+dotprod+i8mm'}}
        expected = {'avx2': {'-mavx2'}, 'avxvnni': avxvnni, 'avx512': avx512, 'bf16': avx512, 'amx': x86, **arm}
        assert set(call) & x86.union(avxvnni, *arm.values()) == expected.get(ending, set()), name
    assert {f'-DBMX_HAVE_{name}' for name in ('AVX2', 'AVXVNNI', 'AVX512', 'AMX', 'NEON', 'DOTPROD', 'I8MM')} <= set(calls['dispatch.o'])


def test_instruction_sets_the_compiler_does_not_know_are_left_out(source, tmp_path):
    unknown = '-mamx-int8 -mavx512vpopcntdq -mavxvnni -march=armv8-a -march=armv8.2-a+dotprod -march=armv8.2-a+dotprod+i8mm -msimd128'
    calls = compile_with(source, tmp_path, unknown)
    left_out = ('amx', 'avx512', 'avxvnni', 'neon', 'dotprod', 'i8mm')
    assert not [name for name in calls if any(f'_{ending}.o' in name for ending in left_out)]
    assert {one for one in calls['dispatch.o'] if 'BMX_HAVE' in one} == {'-DBMX_HAVE_AVX2'}
    assert 'binary_avx2.o' in calls


@pytest.mark.parametrize(
    'macro, expected', [('__aarch64__', {'-DBMX_HAVE_NEON', '-DBMX_HAVE_DOTPROD', '-DBMX_HAVE_I8MM'}), ('__arm__', set())]
)
def test_a_compiler_for_arm_gets_no_file_of_x86(macro, expected, source, tmp_path):
    calls = compile_with(source, tmp_path, macros=macro)
    assert {one for one in calls['dispatch.o'] if 'BMX_HAVE' in one} == expected
    assert not [name for name in calls if 'avx' in name or 'amx' in name]
    assert ('float_neon.o' in calls) == ('peak_neon.o' in calls) == bool(expected)


def test_only_changed_sources_are_compiled_again(source, tmp_path):
    compile_with(source, tmp_path)
    assert libraries(source) == ['_engine.so', '_mxnet_op.so']
    assert compile_with(source, tmp_path) == {}
    future = (source / 'bmx_melius' / '_engine.so').stat().st_mtime + 10
    os.utime(source / 'bmx_melius' / 'csrc' / 'kernels' / 'dispatch.cc', (future, future))
    assert set(compile_with(source, tmp_path)) == {'dispatch.o', '_engine.so.new'}
    os.utime(source / 'bmx_melius' / 'csrc' / 'api' / 'bmx_melius.h', (future + 10, future + 10))
    assert set(compile_with(source, tmp_path)) > {'mxnet_op.o', 'program.o'}


@needs_wheel
def test_objects_of_an_editable_installation_are_used_by_later_builds(source, tmp_path):
    compile_with(source, tmp_path, command=('editable_wheel', '--dist-dir', str(tmp_path / 'dist')))
    future = (source / 'bmx_melius' / '_engine.so').stat().st_mtime + 10
    os.utime(source / 'bmx_melius' / 'csrc' / 'kernels' / 'dispatch.cc', (future, future))
    assert set(compile_with(source, tmp_path)) == {'dispatch.o', '_engine.so.new'}


def test_an_installation_has_the_published_figures_and_the_page_of_the_service(source, tmp_path):
    done = set_up(source, 'build_py', '--build-lib', str(tmp_path / 'built'))
    assert done.returncode == 0, done.stderr
    for shipped in ('model_zoo/published.json', 'model_zoo/weights/networks.json', 'bmx_melius/serving/page.html'):
        assert (tmp_path / 'built' / shipped).read_bytes() == (ROOT / shipped).read_bytes()


def test_an_installation_has_the_packed_networks_and_at_most_3_mb_of_weights(source, tmp_path):
    assert set_up(source, 'build_py', '--build-lib', str(tmp_path / 'built')).returncode == 0
    folder = tmp_path / 'built' / 'model_zoo' / 'weights'
    for network in read_table(folder):
        assert network.packed() == str(folder / network.name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3_000_000


def test_a_source_distribution_has_all_that_a_build_needs(source):
    done = set_up(source, 'sdist')
    assert done.returncode == 0, done.stderr
    (archive,) = (source / 'dist').glob('*.tar.gz')
    with tarfile.open(archive) as tar:
        names = {name.partition('/')[2] for name in tar.getnames()}
    for folder in ('bmx_melius', 'model_zoo', 'tools'):
        sources = (
            path
            for path in (source / folder).rglob('*')
            if path.suffix in ('.py', '.cc', '.h', '.html', '.json', '.sh', '.txt', '.cmake', '.in', '.map')
        )
        assert {path.relative_to(source).as_posix() for path in sources} - names == set()


@needs_wheel
def test_a_wheel_of_the_source_distribution_has_the_same_content_and_is_for_every_python(source, tmp_path):
    path = make_script(tmp_path / 'bin', RECORDING)
    environment = {'PATH': f'{path}:{os.environ["PATH"]}', 'CALLS': str(tmp_path / 'calls'), 'UNKNOWN': ''}
    assert set_up(source, 'sdist').returncode == 0
    (archive,) = (source / 'dist').glob('*.tar.gz')
    shutil.unpack_archive(archive, tmp_path / 'unpacked')
    (unpacked,) = (tmp_path / 'unpacked').iterdir()
    contents = []
    for folder in (source, unpacked):
        done = set_up(folder, 'bdist_wheel', **environment)
        assert done.returncode == 0, done.stderr
        (wheel,) = (folder / 'dist').glob('*.whl')
        assert '-py3-none-linux_' in wheel.name
        with zipfile.ZipFile(wheel) as opened:
            contents.append({name: opened.read(name) for name in opened.namelist()})
    assert {'bmx_melius/_engine.so', 'bmx_melius/_mxnet_op.so', 'bmx_melius/deployment/runtime/session.py'} <= set(contents[0])
    assert contents[0] == contents[1]


@pytest.fixture()
def backend(monkeypatch):
    """The build backend where MXNet is not installed and there is a compiler."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    module = importlib.import_module('build_backend')
    monkeypatch.setattr(module, 'find_mxnet', lambda: None)
    monkeypatch.setattr(module, 'find_compiler', lambda: ['g++'])
    monkeypatch.setattr(module.platform, 'machine', lambda: 'x86_64')
    monkeypatch.setattr(module.platform, 'libc_ver', lambda: ('glibc', '2.36'))
    monkeypatch.delenv('BMX_MELIUS_WITHOUT_MXNET', raising=False)
    return module


def test_a_build_asks_for_mxnet_exactly_where_its_headers_are_needed(backend, monkeypatch):
    def missing():
        raise backend.BuildError('no compiler')

    assert backend.get_requires_for_build_wheel()[-1:] == backend.get_requires_for_build_editable()[-1:] == [backend.MXNET]
    for attribute, value in (('find_mxnet', lambda: ROOT), ('find_compiler', missing)):
        with monkeypatch.context() as changed:
            changed.setattr(backend, attribute, value)
            assert backend.MXNET not in backend.get_requires_for_build_wheel()
    for name, value in (('machine', 'riscv64'), ('libc_ver', ('', ''))):
        with monkeypatch.context() as changed:
            changed.setattr(backend.platform, name, lambda value=value: value)
            assert backend.MXNET not in backend.get_requires_for_build_wheel()
    with monkeypatch.context() as changed:
        changed.setattr(backend.sys, 'version_info', (3, 12, 0))
        assert backend.MXNET not in backend.get_requires_for_build_wheel()
    monkeypatch.setenv('BMX_MELIUS_WITHOUT_MXNET', '1')
    assert backend.MXNET not in backend.get_requires_for_build_wheel()


def test_the_installed_mxnet_is_found_without_importing_it(backend):
    native_build = importlib.import_module('native_build')
    assert native_build.find_mxnet() == pathlib.Path(importlib.util.find_spec('mxnet').origin).resolve().parent


def test_instruction_sets_of_other_processors_are_omitted(backend, tmp_path):
    """Clang accepts flags for other processors and ignores them; here a script does so."""
    compiler = tmp_path / 'clang++'
    compiler.write_text(
        '#!/bin/bash\nfor flag do [[ $flag == -m* ]] || flags+=("$flag"); done\nexec g++ -U__x86_64__ -D__aarch64__=1 "${flags[@]}"\n'
    )
    compiler.chmod(0o755)
    assert list(importlib.import_module('native_build').known_instruction_sets([str(compiler)])) == ['neon', 'dotprod', 'i8mm']


@needs_wheel
@pytest.mark.long
@pytest.mark.parametrize('compiler', [True, False])
def test_a_wheel_holds_the_libraries_if_there_is_a_compiler(source, tmp_path, compiler):
    (tmp_path / 'empty').mkdir()
    done = set_up(source, 'bdist_wheel', **({} if compiler else {'PATH': str(tmp_path / 'empty')}))
    assert done.returncode == 0, done.stderr
    (wheel,) = (source / 'dist').glob('*.whl')
    assert '-py3-none-linux_' in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / 'installed')
    assert {'bmx_melius/csrc/api/bmx_melius.h', 'model_zoo/published.json'} <= set(names)
    assert not [name for name in names if name.endswith('.cc')]
    assert ('bmx_melius/_engine.so' in names, 'bmx_melius/_mxnet_op.so' in names) == (compiler, compiler)
    shown = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', 'info'],
        cwd=tmp_path / 'installed',
        text=True,
        capture_output=True,
        env={**os.environ, 'PYTHONPATH': str(tmp_path / 'installed')},
        check=True,
    ).stdout
    assert ('compiled operator' in shown) == compiler
    assert ('install a C++ compiler (g++), then install bmx-melius again' in shown) != compiler


@pytest.mark.parametrize(
    'tool, programs, packages',
    [
        (
            'test_arm.py',
            'aarch64-linux-gnu-g++, aarch64-linux-gnu-gcc, clang++, qemu-aarch64, cmake, make',
            'g++-aarch64-linux-gnu gcc-aarch64-linux-gnu clang qemu-user cmake make',
        ),
        ('test_wheel_arm.py', 'aarch64-linux-gnu-g++, qemu-aarch64', 'g++-aarch64-linux-gnu qemu-user'),
        ('test_wasm.py', 'em++, node, chromium', 'emscripten nodejs chromium'),
        (
            'test_mcu.py',
            'arm-none-eabi-gcc, qemu-system-arm, riscv64-unknown-elf-gcc, qemu-system-riscv32',
            'gcc-arm-none-eabi qemu-system-arm gcc-riscv64-unknown-elf qemu-system-misc',
        ),
    ],
)
def test_tests_on_other_machines_name_the_packages_that_they_lack(tmp_path, tool, programs, packages):
    command = [sys.executable, '-W', 'ignore', ROOT / 'tools' / tool, *(['dist'] if tool == 'test_wheel_arm.py' else [])]
    done = subprocess.run(command, env={**os.environ, 'PATH': str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f'error: {programs} are needed')
    assert f'apt-get install {packages})' in done.stderr


@pytest.mark.parametrize(
    'arguments, named',
    [
        (
            ['commands.py', 'cmake=cmake', 'g++=g++', 'pkg-config=pkg-config', 'libjpeg=libjpeg-dev'],
            'g++, pkg-config, libjpeg are needed (on Debian and Ubuntu: apt-get install g++ pkg-config libjpeg-dev)',
        ),
        (['run_fuzzers.py', 'c++'], 'clang++ are needed (on Debian and Ubuntu: apt-get install clang)'),
    ],
)
def test_missing_packages_of_programs_and_libraries_are_named_in_one_line(tmp_path, arguments, named):
    make_script(tmp_path, 'exit 0', 'cmake')
    command = [sys.executable, '-W', 'ignore', ROOT / 'tools' / arguments[0], *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, env={'PATH': str(tmp_path), 'PYTHONPATH': str(ROOT)}, capture_output=True, text=True)
    assert done.returncode and done.stderr.splitlines()[-1] == f'error: {named}'


PARTS = """
from commands import UserError, output_of, run_main, run_parts

def fail():
    raise UserError('two bits differ')

parts = {'peaks': lambda: None, 'int8 kernels': fail, 'float kernels': lambda: output_of(['false']), 'last': lambda: print('the last')}
run_main(run_parts, 'A test.', {}, lambda folder: parts)
"""


@pytest.mark.parametrize(
    'arguments, status, passed, errors',
    [
        (['--list'], 0, ['peaks', 'int8 kernels', 'float kernels', 'last'], []),
        (['last', 'peaks'], 0, ['peaks: ok, 0 s', 'the last', 'last: ok, 0 s'], []),
        (['int8 kernels'], 1, [], ['int8 kernels: two bits differ', "error: 1 of 1 parts failed: 'int8 kernels'"]),
        (
            ['kernels', 'last'],
            1,
            ['the last', 'last: ok, 0 s'],
            [
                'int8 kernels: two bits differ',
                'float kernels: false failed (exit status 1): ',
                "error: 2 of 3 parts failed: 'int8 kernels' 'float kernels'",
            ],
        ),
        (['peak'], 1, [], ['error: there is no peak; there are peaks, int8 kernels, float kernels, last']),
    ],
)
def test_parts_are_chosen_by_words_and_those_that_fail_are_named_after_all_have_run(arguments, status, passed, errors):
    command = [sys.executable, '-c', PARTS, *arguments]
    done = subprocess.run(command, env={**os.environ, 'PYTHONPATH': f'{ROOT / "tools"}:{ROOT}'}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines(), done.stderr.splitlines()) == (status, passed, errors)


COMPILATION = """
import os, pathlib, time
sys.path.insert(0, sys.argv[1])
import native_build
native_build.ProgressLine.DELAY, native_build.ProgressLine._PAUSE = 0, 0.01
native_build._run = lambda command: time.sleep(0.05)
os.replace = lambda *paths: None
jobs = [(pathlib.Path(f'{number}.cc'), []) for number in range(8)]
native_build._compile_and_link(['c++'], jobs, [], pathlib.Path('objects'), pathlib.Path('library.so'), [])
"""


@pytest.mark.parametrize('by_pip', [True, False])
def test_compilation_shows_its_progress_on_the_terminal_also_where_pip_keeps_its_output(by_pip, tmp_path):
    environment = {'_PYPROJECT_HOOKS_BUILD_BACKEND': 'build_backend'} if by_pip else {}
    for streams in ((), ('stderr',)):
        shown, done = in_terminal(COMPILATION, str(ROOT / 'tools'), streams=streams, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        assert bool(re.search(r'compiling: \d of 8 files \(\d+%\)', shown)) == (by_pip or bool(streams))
