"""Tests of the engine in WebAssembly: ``make test-wasm``.

The kernels and packed networks, run by Node.js, are compared with this machine (`other_machine`), with both ways of multiply-adds and both
modules (`make_wasm`), as far as the compiler and Node.js have relaxed SIMD. Then a headless Chromium opens the page of ``make wasm``, with
the module that it chooses and with the one for every engine, and digits are drawn with the mouse. Any difference is an error.

The parts can be run one by one: ``--list`` names them.
"""

import functools
import http.server
import itertools
import pathlib
import re
import subprocess
import threading

from commands import output_of, run_main, run_parts
from make_wasm import COMPILER, PACKAGES, RELAXED_FLAG, make_page
from other_machine import FLOAT_KERNELS, ROOT, Machine, check_kernels, check_peaks, check_programs, kernel_parts, network_parts
from support.native_program import FLAGS, build_program
from wasm_encoding import in_final_encoding

from bmx_melius.errors import UserError
from bmx_melius.forking import lazy_attribute

# Emscripten 3.1 takes the fetch of newer Node.js for a browser's.
NODE = ['node', '--no-experimental-fetch']
RELAXED_SIMD = '--experimental-wasm-relaxed-simd'  # an option that Node.js needed before version 21
WITHOUT_RELAXED_SIMD = ROOT / 'tests' / 'wasm' / 'without_relaxed_simd.js'
EXACT, RELAXED = 'bmx_melius.wasm', 'bmx_melius_relaxed.wasm'
WASM = Machine(
    name='wasm',
    compilers={'emscripten': COMPILER},
    flags=['-fexceptions', '-sALLOW_MEMORY_GROWTH'],
    launcher=NODE,
    instruction_sets=('reference', 'wasm'),
)
PAGE = ROOT / 'build' / 'web'
DRAWN = ('0', '1', '7')  # what tests/wasm/draw_digits.html draws


class RelaxedMachine(Machine):
    """WebAssembly with relaxed SIMD, whose instructions have their final opcodes in the programs."""

    def build(self, folder, source, parts, *flags, compiler):
        program = super().build(folder, source, parts, *flags, compiler=compiler)
        module = program.with_suffix('.wasm')
        module.write_bytes(in_final_encoding(module.read_bytes()))
        return program


def parts_in(folder):
    """Return the parts of the test (`commands.run_parts`)."""
    built = Built(folder)
    return {
        'choice': lambda: built.nodes,
        'multiply-add': built.check_multiply_add,
        **kernel_parts(WASM, folder),
        # the other kernels are the same
        **{f'{kind} kernels of wasm with relaxed SIMD': functools.partial(built.check_relaxed_kernels, kind) for kind in FLOAT_KERNELS},
        'peaks': functools.partial(check_peaks, WASM, folder),
        **network_parts(folder, built.run),
        'random programs': functools.partial(check_programs, folder, built.run),
        'page': functools.partial(built.check_page, ''),
        'page without relaxed SIMD': functools.partial(built.check_page, WITHOUT_RELAXED_SIMD.name),
    }


class Built:
    """What the parts build when the first of them needs it: the page, in `PAGE`, and programs, in a folder."""

    def __init__(self, folder):
        self.folder = folder

    @lazy_attribute
    def page(self):
        """The folder of the page and the modules."""
        make_page(PAGE)
        return PAGE

    @lazy_attribute
    def nodes(self):
        """The modules that Node.js chooses: their files -> commands of Node.js. The choice is tested, too."""
        known = not subprocess.run([NODE[0], RELAXED_SIMD, '-p', '0'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        commands = [[NODE[0], '--require', WITHOUT_RELAXED_SIMD], [NODE[0], *([RELAXED_SIMD] if known else [])]]
        test = ROOT / 'tests' / 'wasm' / 'choose_module_test.js'
        chosen = {output_of([*command, test, self.page]).strip(): command for command in reversed(commands)}
        if known and can_choose_relaxed() and RELAXED not in chosen:
            raise UserError(f'Node.js does not choose {RELAXED}, although it and the processor have a fused multiply-add')
        return chosen

    @lazy_attribute
    def relaxed(self):
        """The machine with relaxed SIMD, or None where it cannot be tested."""
        if RELAXED not in self.nodes:
            print('relaxed SIMD is not tested: the compiler, Node.js or the processor does not have it', flush=True)
            return None
        options = {'flags': [*WASM.flags, RELAXED_FLAG], 'launcher': [*self.nodes[RELAXED], *NODE[1:]]}
        return RelaxedMachine(**{**vars(WASM), 'name': 'wasm with relaxed SIMD', **options})

    def check_relaxed_kernels(self, kind):
        if self.relaxed:
            check_kernels(self.relaxed, self.folder, kind)

    def run(self, *files):
        """Run a packed network by both modules; yield the module and the scores."""
        for module, node in self.nodes.items():
            yield module, output_of([*node, self.page / 'classify.js', *files])

    def check_multiply_add(self):
        """Compare multiply-adds whose sums are hard to round with the C library of this machine."""
        source, count = 'tests/csrc/multiply_add_test.cc', 20000
        expected = output_of([build_program(self.folder, source, [], FLAGS), count]).splitlines()
        for machine in filter(None, (WASM, self.relaxed)):
            found = machine.run(machine.build(self.folder, source, [], '-msimd128', compiler='emscripten'), count).splitlines()
            for one, other in itertools.zip_longest(found, expected):
                if one != other:
                    raise UserError(f'multiply-add, {machine.name}: {one}; this machine: {other}')

    def check_page(self, script):
        """Open a page that draws digits in the page of `make wasm` with mouse events, and compare what that one finds; see `Handler`."""
        requested = []
        handler = functools.partial(Handler, directory=str(self.page), requested=requested, script=script)
        with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f'http://127.0.0.1:{server.server_port}/draw_digits.html'
            chromium = ['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking']
            chromium += [f'--user-data-dir={self.folder / "chromium"}', '--virtual-time-budget=20000', '--dump-dom']
            shown = output_of([*chromium, address])
            server.shutdown()
        found = re.search('<pre id="found">(.*?)</pre>', shown, re.DOTALL)
        if not found or tuple(found[1].split()) != DRAWN:
            raise UserError(f'the page found {found[1] if found else shown} in drawings of {" ".join(DRAWN)}')
        modules = [path[1:] for path in requested if path.endswith('.wasm')]
        expected = RELAXED if can_choose_relaxed() and not script else EXACT
        if modules != [expected]:
            raise UserError(f'the page loaded {" ".join(modules)}, not {expected}')
        print(f'the page in Chromium with {modules[0]}: {" ".join(DRAWN)}', flush=True)


def can_choose_relaxed():
    """Return whether the module with relaxed SIMD is there and this processor has a fused multiply-add."""
    features = pathlib.Path('/proc/cpuinfo').read_text()
    return (PAGE / RELAXED).exists() and re.search(r'^flags\s*:.* fma |^Features\s*:.* asimd ', features, re.MULTILINE) is not None


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page of ``make wasm``, and files of the tests beside it.

    Parameters
    ----------
    requested : list of str
        The paths of requests are added.
    script : str
        Name of a script in tests that the page loads before all others, or ''.
    """

    def __init__(self, *arguments, requested, script, **keywords):
        self.requested, self.script = requested, script
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        self.requested.append(self.path)
        if self.path != '/index.html' or not self.script:
            return super().do_GET()
        content = f'<!DOCTYPE html><script src="{self.script}"></script>'.encode() + (PAGE / 'index.html').read_bytes()
        self.send_response(http.HTTPStatus.OK)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def translate_path(self, path):
        of_tests = {f'/{name}': ROOT / 'tests' / 'wasm' / name for name in ('draw_digits.html', WITHOUT_RELAXED_SIMD.name)}
        return str(of_tests[path]) if path in of_tests else super().translate_path(path)

    def log_message(self, *_):
        """Print nothing."""


if __name__ == '__main__':
    run_main(run_parts, __doc__, {**PACKAGES, 'chromium': 'chromium'}, parts_in)
