"""Build of the engine for WebAssembly, and of the page that classifies drawn digits: ``make wasm``.

    python tools/make_wasm.py FOLDER

compiles ``bmx_melius/csrc`` by Emscripten, with the vectors of WebAssembly and without threads, to FOLDER/bmx_melius.js and
FOLDER/bmx_melius.wasm, copies the page from ``examples/web``, and trains its network, unless the folder has one.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

from native_build import FLAGS, INSTRUCTION_SETS, OPERATOR_SOURCE, known_instruction_sets
from other_machine import ROOT, install_tools, output_of

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
    *('malloc', 'free', 'bmx_version', 'bmx_last_error', 'bmx_isa', 'bmx_program_load', 'bmx_program_destroy', 'bmx_program_outputs'),
    *('bmx_program_inputs', 'bmx_program_input_shape', 'bmx_program_infer', 'bmx_program_run'),
]
LINK_FLAGS = [
    *('-O3', '-fexceptions', '-sMODULARIZE', '-sEXPORT_NAME=createBmxMelius', '-sALLOW_MEMORY_GROWTH', '-sENVIRONMENT=web,worker,node'),
    *('-sFORCE_FILESYSTEM', '-sEXPORTED_RUNTIME_METHODS=FS,UTF8ToString', f'-sEXPORTED_FUNCTIONS={",".join("_" + f for f in FUNCTIONS)}'),
]
PAGE = ROOT / 'examples' / 'web'
NETWORK = 'digits-0000.params'


def build_module(folder: pathlib.Path, objects: pathlib.Path):
    """Compile the engine to FOLDER/bmx_melius.js and .wasm; `objects` is a folder whose object files are used again while they are new."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = ROOT / 'bmx_melius' / 'csrc'
    have = known_instruction_sets(COMPILER)
    if not have:
        raise UserError(f'{COMPILER[0]} does not support the vectors of WebAssembly: install a newer Emscripten (3.1 or later)')
    flags = [*COMPILE_FLAGS, f'-I{sources}', *(f'-DBMX_HAVE_{name.upper()}' for name in have)]
    changed = max(path.stat().st_mtime for path in (*sources.rglob('*.h'), ROOT / 'tools' / 'compile_flags.txt', pathlib.Path(__file__)))
    commands, results = [], []
    for source in sorted(sources.rglob('*.cc')):
        ending = source.stem.rpartition('_')[2]
        if source.name == OPERATOR_SOURCE or (ending in INSTRUCTION_SETS and ending not in have):
            continue
        results.append((objects / source.relative_to(sources)).with_suffix('.o'))
        results[-1].parent.mkdir(parents=True, exist_ok=True)
        if not results[-1].exists() or results[-1].stat().st_mtime < max(changed, source.stat().st_mtime):
            commands.append([*COMPILER, *flags, *have.get(ending, []), '-c', source, '-o', results[-1]])
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(output_of, commands))
    output_of([*COMPILER, *LINK_FLAGS, *results, '-o', folder / 'bmx_melius.js'])


def make_page(folder: pathlib.Path):
    """Build the module, copy the page and train its network into a folder."""
    build_module(folder, ROOT / 'build' / 'wasm-objects')
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
    try:
        main(pathlib.Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f'error: {error}')
