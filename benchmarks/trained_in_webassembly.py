"""Run the networks that ship with the project in WebAssembly, by Node.js, and compare the logits of test images with the engine's.

    python benchmarks/trained_in_webassembly.py [--data-dir FOLDER] [--images 100]

Each network runs as it ships and with 8-bit layers, whose ranges come from 256 training images of Fashion-MNIST, in each module that
Node.js may choose (``tools/make_wasm.py``). The logits of each test image must equal the engine's, bit for bit: any difference ends it with
an error. Printed are the images that are classified correctly.
"""

import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools'), str(ROOT / 'tests')]

import numpy as np  # noqa: E402  the path comes first
import test_wasm  # noqa: E402
from commands import install_tools, run_main  # noqa: E402
from trained_networks import CALIBRATION, Images, downloaded, export  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.files.stored_networks import read_table  # noqa: E402
from model_zoo.shipped import FOLDER  # noqa: E402


def main():
    """Run all networks in both forms and print a line for each module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data-dir', type=pathlib.Path, help='folder with the four files of Fashion-MNIST')
    parser.add_argument('--images', type=int, default=100, help='test images that each module classifies (default: %(default)s)')
    arguments = parser.parse_args()
    install_tools(test_wasm.PACKAGES)
    folder, networks = arguments.data_dir or downloaded(), read_table(FOLDER)
    training, test = Images(folder, networks[0], True, CALIBRATION), Images(folder, networks[0], most=arguments.images)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        built = test_wasm.Built(scratch)
        for network in networks:
            exported, calibration = export(network, scratch), training.normalized(network)
            shape = (1, *calibration.shape[1:])
            bmx.convert(exported.symbol_file, exported.parameter_file(0), scratch / 'int8', shape, calibration=calibration)
            for form, prefix in (('as it ships', network.packed()), ('8 bits', scratch / 'int8')):
                compare(f'{network.name}, {form}', prefix, test.normalized(network), test.labels, built)


def compare(title, prefix, images, labels, built):
    """Run a packed network by each module and compare its logits with the engine's."""
    expected = bmx.Session(prefix)(images)
    file = built.folder / 'images'
    images.tofile(file)
    for module, scores in built.run(f'{prefix}-0000.params', file):
        found = np.array(scores.split(), np.float32).reshape(expected.shape)
        different = (found.view(np.int32) != expected.view(np.int32)).any(axis=1).sum()
        if different:
            raise UserError(f'{title}: {module} has other logits than the engine for {different} of {len(images)} images')
        correct = (found.argmax(axis=1) == labels).sum()
        print(f'{title}, {module}: {correct} of {len(images)} images, all logits equal the engine', flush=True)


if __name__ == '__main__':
    run_main(main)
