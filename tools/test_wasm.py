"""Tests of the engine in WebAssembly: ``make test-wasm``.

The kernels and packed networks, run by Node.js, are compared with this machine (`other_machine`). Then a headless Chromium opens the page
of ``make wasm``, in which digits are drawn with the mouse. Any difference ends it with an error.
"""

import functools
import http.server
import pathlib
import re
import sys
import tempfile
import threading

from make_wasm import COMPILER, PACKAGES, make_page
from other_machine import ROOT, Machine, check_kernels, check_networks, install_tools, output_of

from bmx_melius.errors import UserError

# Emscripten 3.1 takes the fetch of newer Node.js for that of a browser.
NODE = ['node', '--no-experimental-fetch']
WASM = Machine(
    name='wasm',
    compilers={'emscripten': COMPILER},
    flags=['-fexceptions', '-sALLOW_MEMORY_GROWTH'],
    launcher=NODE,
    instruction_sets=('reference', 'wasm'),
)
PAGE = ROOT / 'build' / 'web'
DRAWN = ('0', '1', '7')  # what tests/draw_digits.html draws


def main():
    """Run all checks. Raises `UserError` at the first difference."""
    install_tools({**PACKAGES, 'chromium': 'chromium'})
    make_page(PAGE)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_kernels(WASM, folder)
        check_networks(folder, lambda params, image: [('wasm', output_of(['node', PAGE / 'classify.js', params, image]))])
        check_page(folder)
    print('wasm: all results have the bits of this machine')


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page, and beside it the page that draws."""

    def translate_path(self, path):
        return str(ROOT / 'tests' / 'draw_digits.html') if path == '/draw_digits.html' else super().translate_path(path)

    def log_message(self, *_):
        """Print nothing."""


def check_page(folder):
    """Open a page that draws digits in the page of `make wasm` with mouse events, and compare what that one finds."""
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Handler, directory=str(PAGE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f'http://127.0.0.1:{server.server_port}/draw_digits.html'
        chromium = ['chromium', '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={folder / "chromium"}']
        shown = output_of([*chromium, '--virtual-time-budget=20000', '--dump-dom', address])
        server.shutdown()
    found = re.search('<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    if not found or tuple(found[1].split()) != DRAWN:
        raise UserError(f'the page found {found[1] if found else shown} in drawings of {" ".join(DRAWN)}')
    print(f'the page in Chromium: {" ".join(DRAWN)}', flush=True)


if __name__ == '__main__':
    try:
        main()
    except UserError as error:
        sys.exit(f'error: {error}')
