"""The library for C and C++: built and installed by CMake, and used by programs that find it with CMake and with pkg-config.

`make test-c` installs the tools for it; `make test` skips these tests, which compile the engine again.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
from support.c_library import BUILD, ROOT, call, cmake, install, only_test_c
from support.packed import make_image, make_program, write_packed
from support.static_library import weak_symbols

import bmx_melius as bmx
from bmx_melius._version import __version__
from bmx_melius.deployment.runtime import engine

pytestmark = only_test_c

EXAMPLES = {'c': ['gcc', '-std=c99', ROOT / 'examples/c/run_packed.c'], 'cpp': ['g++', '-std=c++17', ROOT / 'examples/cpp/run_packed.cc']}
FLAGS_OF_CMAKE = ('-fexceptions', '-Wno-error', '-Wno-uninitialized', '-Wno-maybe-uninitialized')  # for projects that contain this one


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """Folder of an installation, moved after it was made."""
    return install(tmp_path_factory.mktemp('c'))


@pytest.fixture(scope='module')
def library(installed):
    """Folder of the installed libraries."""
    return next(installed.rglob('libbmx_melius.so')).parent


@pytest.fixture()
def run_example(tmp_path):
    """A function that runs the command of an example on a network and compares what it prints with a session, bit for bit."""
    write_packed(tmp_path / 'net', make_program())
    x = make_image(1)
    x.tofile(tmp_path / 'x.bin')
    (tmp_path / 'empty').touch()
    expected = bmx.Session(tmp_path / 'net', threads=1)(x)[0].ravel()

    def run(*command, **environment):
        printed = call(*command, tmp_path / 'net-0000.params', tmp_path / 'x.bin', **environment)
        np.testing.assert_array_equal(np.array(printed.split(), np.float32), expected)
        for arguments in (('x.bin', 'x.bin'), ('net-0000.params', 'none'), ('net-0000.params', 'empty'), ()):
            wrong = [*command, *(tmp_path / name for name in arguments)]
            failed = subprocess.run(wrong, stderr=subprocess.PIPE, env={**os.environ, **environment})
            assert failed.returncode == 1 and failed.stderr.startswith(b'error: ') and failed.stderr.count(b'\n') == 1, failed

    return run


def test_each_file_is_compiled_with_the_flags_of_the_python_package(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    import native_build

    jobs = []
    monkeypatch.setattr(native_build, '_compile_and_link', lambda compiler, of_engine, *rest: jobs.extend(of_engine))
    engine, _ = native_build.extensions()
    sources = [pathlib.Path(source) for source in engine.sources]
    native_build._build_engine(native_build.find_compiler(), sources, [], None, pathlib.Path('_engine.so'), __version__)
    expected = {str(ROOT / source): {flag for flag in flags if not flag.startswith('-I')} for source, flags in jobs}
    found = {}
    for entry in json.loads((BUILD / 'compile_commands.json').read_text()):
        if 'bmx_melius/csrc' in entry['file']:
            flags = shlex.split(entry['command'])[1 : -len(['-o', 'OBJECT', '-c', 'SOURCE'])]
            found[entry['file']] = {flag for flag in flags if not flag.startswith('-I') and flag not in FLAGS_OF_CMAKE}
    assert len(expected) > 20 and found == expected


def test_the_shared_library_exports_only_the_interface_and_is_named_by_its_version(library):
    shared = library / 'libbmx_melius.so'
    symbols = {tuple(line.split()[1:]) for line in call('nm', '-D', '--defined-only', shared).splitlines()}
    header = (ROOT / 'bmx_melius/csrc/api/bmx_melius.h').read_text()
    functions = re.findall(r'^[a-z].*?\b(bmx_\w+)\(', header, re.MULTILINE)
    assert 'bmx_program_run' in functions and symbols == {('T', name) for name in functions}
    major, minor, _ = __version__.split('.')
    soname = f'libbmx_melius.so.{major}.{minor}' if major == '0' else f'libbmx_melius.so.{major}'
    assert f'[{soname}]' in call('readelf', '-d', shared) and shared.resolve().name == f'libbmx_melius.so.{__version__}'


def test_files_for_one_instruction_set_share_no_functions_with_other_files(library, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    from native_build import INSTRUCTION_SETS

    assert weak_symbols(library / 'libbmx_melius.a', INSTRUCTION_SETS) == []


@pytest.mark.parametrize('static', ['OFF', 'ON'])
def test_the_examples_find_the_library_with_cmake(installed, tmp_path, run_example, static):
    cmake(ROOT / 'examples', tmp_path / 'build', f'-DCMAKE_PREFIX_PATH={installed}', f'-DSTATIC={static}')
    for name in EXAMPLES:
        program = tmp_path / 'build' / f'run_packed_{name}'
        assert ('libbmx_melius.so' in call('readelf', '-d', program)) == (static == 'OFF')
        run_example(program)


def found_by_pkg_config(library, static):
    """Return the flags of the compiler, a list."""
    flags = call(
        'pkg-config', '--cflags', '--libs', *(['--static'] if static else []), 'bmx_melius', PKG_CONFIG_PATH=str(library / 'pkgconfig')
    )
    return shlex.split(flags.replace('-lbmx_melius', '-l:libbmx_melius.a') if static else flags)


def search(library):
    """Return the environment in which programs find the shared library."""
    return {'LD_LIBRARY_PATH': str(library)}


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('language', EXAMPLES)
def test_the_examples_find_the_library_with_pkg_config(library, tmp_path, run_example, language, static):
    program = tmp_path / 'run_packed'
    checks = ['-Wall', '-Wextra', '-Wpedantic', '-Werror', '-fsanitize=address,undefined']  # leaks also where the examples fail
    call(*EXAMPLES[language], *checks, *found_by_pkg_config(library, static), '-o', program)
    run_example(program, **search(library))


@pytest.mark.parametrize('static', [False, True])
def test_the_example_that_classifies_an_image_gives_the_classes_of_a_session(library, tmp_path, static):
    """Of networks with and without names, for colours and for gray, and with their description in the symbol or beside it."""
    checks = ['-Wall', '-Wextra', '-Wpedantic', '-Werror', '-fsanitize=address,undefined']
    program = tmp_path / 'classify_image'
    call('gcc', '-std=c99', ROOT / 'examples/c/classify_image.c', *checks, *found_by_pkg_config(library, static), '-o', program)
    names = ['ant', 'bee', 'cät', 'dog', 'elk', 'fox', 'gnu']
    for channels, class_names in ((3, names), (1, None)):
        prefix, pixels = tmp_path / f'net{channels}', np.random.RandomState(channels).randint(0, 256, (40, 31, 3)).astype(np.uint8)
        write_packed(prefix, make_program(channels=channels), [0])
        spec = bmx.InputSpec(channels, 12, 15, (120.5,) * channels, (60.7,) * channels)
        description, symbol = {'input': spec.to_json(), 'class_names': class_names}, pathlib.Path(f'{prefix}-symbol.json')
        if class_names:
            graph = json.loads(symbol.read_text())
            graph['attrs']['bmx_melius_description'] = ['str', json.dumps(description)]
            symbol.write_text(json.dumps(graph))
        else:
            pathlib.Path(f'{prefix}-summary.json').write_text(json.dumps(description))
        for image in (pixels, pixels[..., 0]):
            PIL.Image.fromarray(image).save(tmp_path / 'image.ppm')
            rows = [line.split(' ', 2) for line in call(program, prefix, tmp_path / 'image.ppm', **search(library)).splitlines()]
            expected = bmx.Session(prefix).classify(tmp_path / 'image.ppm')
            assert [(names[int(number)] if class_names else number) for number, *_ in rows] == [name for name, _ in expected]
            assert [name for *_, name in rows] == [name if class_names else '' for name, _ in expected]
            np.testing.assert_allclose([float(row[1]) for row in rows], [probability for _, probability in expected], rtol=1e-12)
    content = pixels[..., 0].tobytes()
    for header in (b'P5\n# GIMP # 3\n31 40\n#\n255\n', b'P5 \t31# width\n\n  40 255 ', b'P5 # \n # \n31\r40\n255\n'):
        (tmp_path / 'comments.ppm').write_bytes(header + content)
        found = [call(program, prefix, tmp_path / name, **search(library)) for name in ('image.ppm', 'comments.ppm')]
        assert found[0] == found[1], header
    kind, large, truncated = (f'error: the image {reason}'.encode() for reason in ('is not a binary PPM', 'is too large\n', 'is truncated'))
    no_images = (b'', b'P5', b'P4 31 40 255\n', b'P5 31 40 65535\n', b'P5 31 40 #', b'P5 31 40 255x')
    no_sizes = (b'P5 0 40 255\n', b'P5 -1 40 255\n', b'P5 1 9999999999 255\n', b'P5 3 1x 255\n')
    too_large = (b'P5 134217729 1 255\n', b'P6 16384 8193 255\n', b'P6 999999999 999999999 255\n')
    incomplete = (b'P5 134217728 1 255\n', b'P5 31 40 255\n' + content[1:])
    messages = {no_images: kind, no_sizes: kind, too_large: large, incomplete: truncated}
    for header, message in ((header, messages[headers]) for headers in messages for header in headers):
        (tmp_path / 'refused.ppm').write_bytes(header)
        failed = subprocess.run([program, prefix, tmp_path / 'refused.ppm'], stderr=subprocess.PIPE, env={**os.environ, **search(library)})
        assert failed.returncode == 1 and failed.stderr.startswith(message), (header[:30], failed)
    for arguments in ((prefix, prefix), (tmp_path / 'none', tmp_path / 'image.ppm'), (prefix,)):
        failed = subprocess.run([program, *arguments], stderr=subprocess.PIPE, env={**os.environ, **search(library)})
        assert failed.returncode == 1 and failed.stderr.startswith(b'error: ') and failed.stderr.count(b'\n') == 1, failed


def test_the_example_in_python_needs_only_numpy_and_the_library(library, tmp_path, run_example):
    (tmp_path / 'bmx_melius.py').write_text('raise ImportError("the example must not import the package")\n')
    environment = {**search(library), 'PYTHONPATH': str(tmp_path)}
    run_example(sys.executable, ROOT / 'examples/python/run_packed.py', **environment)


def test_instruction_sets_of_other_processors_are_omitted(tmp_path):
    """Clang, the compiler of Android, accepts flags for other processors and ignores them; here a script does so."""
    compiler = tmp_path / 'clang++'
    compiler.write_text(
        '#!/bin/bash\nfor flag do [[ $flag == -m* ]] || flags+=("$flag"); done\nexec g++ -U__x86_64__ -D__aarch64__=1 "${flags[@]}"\n'
    )
    compiler.chmod(0o755)
    call('cmake', '-S', ROOT, '-B', tmp_path / 'build', f'-DCMAKE_CXX_COMPILER={compiler}', '-DCMAKE_EXPORT_COMPILE_COMMANDS=ON')
    compiled = (tmp_path / 'build' / 'compile_commands.json').read_text()
    assert all(name in compiled for name in ('binary_neon.cc', 'binary_dotprod.cc', 'int8_i8mm.cc', 'float_reference.cc'))
    x86 = ('avx2', 'avxvnni', 'avx512', 'amx')
    assert [name for name in x86 if f'_{name}.cc' in compiled or f'BMX_HAVE_{name.upper()}' in compiled] == []


@pytest.mark.parametrize('compiler', ['g++', 'clang++'])
def test_flags_of_a_user_cannot_change_results(compiler, monkeypatch):
    """What -ffast-math and the like allow must be forbidden by the flags that follow them."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    import native_build

    if not shutil.which(compiler):
        pytest.skip(f'{compiler} is not installed')
    for flags in (['-ffast-math'], ['-Ofast'], ['-ffinite-math-only'], ['-funsafe-math-optimizations', '-fno-signed-zeros']):
        macros = call(compiler, *flags, *native_build.FLAGS, '-x', 'c++', '-dM', '-E', os.devnull)
        assert '__FAST_MATH__' not in macros and '#define __FINITE_MATH_ONLY__ 0' in macros
        if compiler == 'g++':
            shown = call(compiler, *flags, *native_build.FLAGS, '-Q', '--help=optimizers').split('\n')
            states = dict(line.split() for line in shown if len(line.split()) == 2)
            assert {states[f'-f{name}'] for name in ('associative-math', 'reciprocal-math', 'unsafe-math-optimizations')} == {'[disabled]'}
            assert states['-fsigned-zeros'] == '[enabled]' and states['-ffp-contract=[off|on|fast]'] == 'off'
        else:
            done = subprocess.run(
                [compiler, *flags, *native_build.FLAGS, '-x', 'c++', '-c', '-###', os.devnull], capture_output=True, text=True
            )
            assert '"-ffp-contract=off"' in done.stderr and 'reassoc' not in done.stderr and 'signed-zeros' not in done.stderr


USER = """
cmake_minimum_required(VERSION 3.16)
project(user C CXX)
set(CMAKE_CXX_STANDARD 11)
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
set(HAVE BMX_HAVE_WASM)
set(INSTRUCTION_SETS c)
add_compile_options(-ffast-math -march=native -Wall -Wextra -Wconversion -Werror -D_FORTIFY_SOURCE=3)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions> $<$<COMPILE_LANGUAGE:CXX>:-fno-rtti>)
add_link_options(-ffast-math)
add_library(objects OBJECT own.c)
include(FetchContent)
FetchContent_Declare(bmx_melius SOURCE_DIR "{root}")
FetchContent_MakeAvailable(bmx_melius)
add_executable(program "{root}/examples/c/run_packed.c")
target_link_libraries(program PRIVATE bmx_melius::bmx_melius objects)
install(TARGETS program)
"""


def test_the_library_as_part_of_another_project_computes_the_same_and_installs_nothing(tmp_path, run_example):
    """Options, flags, variables and targets of that project must not change the library, and the library's not the project."""
    (tmp_path / 'CMakeLists.txt').write_text(USER.replace('{root}', str(ROOT)))
    (tmp_path / 'own.c').write_text('int own(void) { return 1; }\n')
    cmake(tmp_path, tmp_path / 'build')
    call('cmake', '--install', tmp_path / 'build', '--prefix', tmp_path / 'installed')
    assert [path.name for path in (tmp_path / 'installed').rglob('*') if path.is_file()] == ['program']
    for name in engine.instruction_sets()[1]:
        run_example(tmp_path / 'build' / 'program', BMX_MELIUS_ISA=name)


def test_pkg_config_and_cmake_report_the_version(library, tmp_path):
    assert call('pkg-config', '--modversion', 'bmx_melius', PKG_CONFIG_PATH=str(library / 'pkgconfig')).strip() == __version__
    (tmp_path / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.16)\nproject(user C)\n'
        'find_package(bmx_melius 99 QUIET)\nmessage(STATUS "found ${bmx_melius_FOUND} ${bmx_melius_CONSIDERED_VERSIONS}")\n'
    )
    shown = call('cmake', '-S', tmp_path, '-B', tmp_path / 'build', f'-DCMAKE_PREFIX_PATH={library.parent}')
    assert f'found 0 {__version__}' in shown
