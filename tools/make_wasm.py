"""Build of the engine for WebAssembly, and of the page that classifies drawn digits: ``make wasm``.

    python tools/make_wasm.py FOLDER

compiles ``bmx_melius/csrc`` by Emscripten, with the vectors of WebAssembly and without threads, to FOLDER/bmx_melius.js and two modules:
FOLDER/bmx_melius.wasm for every engine, and FOLDER/bmx_melius_relaxed.wasm with the multiply-add of relaxed SIMD, which the JavaScript
loads where it rounds once. Copies the page from ``examples/web``, and trains its network, unless the folder has one.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from commands import install_tools, output_of, run_main
from native_build import FLAGS, BuildError, compile_all, engine_jobs, is_of_operator, known_instruction_sets
from other_machine import ROOT
from wasm_encoding import in_final_encoding

from bmx_melius._version import __version__
from bmx_melius.errors import UserError

COMPILER = ['em++']
PACKAGES = {'em++': 'emscripten', 'node': 'nodejs'}
os.environ.setdefault(
    'NODE_PATH', '/usr/share/nodejs'
)  # where Debian's Emscripten has modules that it needs; another Node.js would not look
# Exceptions are off by default. Position-independent code is for shared libraries, which modules are not.
COMPILE_FLAGS = [*(flag for flag in FLAGS if flag != '-fPIC'), '-fexceptions', f'-DBMX_VERSION="{__version__}"']
FUNCTIONS = [
    *('malloc', 'free', 'bmx_version', 'bmx_last_error', 'bmx_isa', 'bmx_program_load_memory', 'bmx_program_destroy'),
    *('bmx_program_inputs', 'bmx_program_outputs', 'bmx_program_input_shape', 'bmx_program_infer', 'bmx_program_run'),
]
MEMORY = 'HEAPU8,HEAP32,HEAPU32,HEAPF32'  # which Emscripten exports by default before version 4.0.7, and then reports as unknown here
LINK_FLAGS = [
    *('-O3', '-fexceptions', '-sMODULARIZE', '-sEXPORT_NAME=createBmxMelius', '-sALLOW_MEMORY_GROWTH', '-sENVIRONMENT=web,worker,node'),
    *('-sFILESYSTEM=0', f'-sEXPORTED_RUNTIME_METHODS=UTF8ToString,{MEMORY}'),
    f'-sEXPORTED_FUNCTIONS={",".join("_" + name for name in FUNCTIONS)}',
]
SOURCES = ROOT / 'bmx_melius' / 'csrc'
RELAXED_FLAG = '-mrelaxed-simd'
RELAXED_SOURCE = SOURCES / 'kernels' / 'wasm' / 'float_wasm.cc'  # all multiply-adds of vectors in a run
PAGE = ROOT / 'examples' / 'web'
ALL_OBJECTS_DEPEND_ON = [ROOT / 'tools' / 'compile_flags.txt', ROOT / 'bmx_melius' / '_version.py', pathlib.Path(__file__)]
CHOICE = ROOT / 'tools' / 'wasm' / 'choose_module.js'
NETWORK = 'digits-0000.params'


def has_relaxed_madd():
    """Return whether the compiler supports the multiply-add of relaxed SIMD."""
    header = SOURCES / 'kernels' / 'wasm' / 'multiply_add_wasm.h'
    command = [*COMPILER, '-msimd128', RELAXED_FLAG, '-x', 'c++', '-dM', '-E', str(header)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.returncode == 0 and '#define BMX_RELAXED_MADD ' in done.stdout


def build_modules(folder: pathlib.Path, objects: pathlib.Path):
    """Compile the engine to FOLDER/bmx_melius.js and its modules.

    Parameters
    ----------
    folder : pathlib.Path
        Where the results are written.
    objects : pathlib.Path
        Folder whose object files are used again while they are new.
    """
    folder.mkdir(parents=True, exist_ok=True)
    have, has_relaxed = known_instruction_sets(COMPILER), has_relaxed_madd()
    if not have:
        raise UserError(f'{COMPILER[0]} does not support the vectors of WebAssembly: install a newer Emscripten (3.1 or later)')
    sources = sorted(path for path in SOURCES.rglob('*.cc') if not is_of_operator(path))
    jobs, headers = engine_jobs(sources, have, [*COMPILE_FLAGS, f'-I{SOURCES}']), [*SOURCES.rglob('*.h'), *ALL_OBJECTS_DEPEND_ON]
    parts = compile_all(COMPILER, jobs, headers, objects)
    choice = objects / 'choose_module.js'
    choice.write_text(f'const HAS_RELAXED_MODULE = {str(has_relaxed).lower()};\n{CHOICE.read_text()}')
    link, script, module = [*COMPILER, *LINK_FLAGS, '--pre-js', choice], folder / 'bmx_melius.js', folder / 'bmx_melius_relaxed.wasm'
    output_of([*link, *parts, '-o', script])
    if not has_relaxed:
        module.unlink(missing_ok=True)
        print(f'{COMPILER[0]} does not support relaxed SIMD: only the module for every engine is built')
        return
    relaxed = objects / 'relaxed' / 'bmx_melius.js'
    number, flags = next((number, flags) for number, (source, flags) in enumerate(jobs) if source == RELAXED_SOURCE)
    (parts[number],) = compile_all(COMPILER, [(RELAXED_SOURCE, [*flags, RELAXED_FLAG])], headers, relaxed.parent)
    output_of([*link, *parts, '-o', relaxed])
    if relaxed.read_bytes() != script.read_bytes():
        raise UserError(f'the modules need different JavaScript: compare {relaxed} and {script}')
    module.write_bytes(in_final_encoding(relaxed.with_suffix('.wasm').read_bytes()))


def make_page(folder: pathlib.Path):
    """Build the modules, copy the page and train its network into a folder."""
    try:
        build_modules(folder, ROOT / 'build' / 'wasm-objects')
    except BuildError as error:
        raise UserError(str(error)) from error
    for path in PAGE.iterdir():
        if path.suffix in ('.html', '.js'):
            shutil.copy(path, folder)
    if not (folder / NETWORK).exists():
        subprocess.run([sys.executable, '-W', 'ignore', PAGE / 'train_digits.py', folder / 'digits'], check=True)


def main(folder):
    """Install what is missing and build everything. Raises `UserError` if that fails."""
    install_tools(PACKAGES)
    make_page(folder)
    print(f'the page: python -m http.server --directory {os.path.relpath(folder)}, then http://localhost:8000')


if __name__ == '__main__':
    run_main(main, pathlib.Path(sys.argv[1]))
