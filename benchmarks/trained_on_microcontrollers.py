"""Run the networks that ship with the project on Cortex-M processors under emulation, with 8-bit layers, and count their instructions.

    python benchmarks/trained_on_microcontrollers.py [--data-dir FOLDER] [--images 100]

Each network is packed from its weights for training with 8-bit layers, whose ranges come from 256 training images of Fashion-MNIST, and
exported as C. The bits of all binary layers and the logits of each test image must equal the engine's, bit for bit: any difference ends it
with an error. Printed are the bytes of flash and of static memory, and the instructions for an image by kind of layer. The emulated boards
have the instructions of their processor and other memory: code for Cortex-M0 runs on the Cortex-M3, which has more memory.
"""

import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools'), str(ROOT / 'tests')]

import test_mcu  # noqa: E402  the path comes first
from commands import install_tools, run_main  # noqa: E402
from mcu_emulator import COUNTED, LARGE_CORTEX_M0  # noqa: E402
from support.exported_c import bits_of_layers  # noqa: E402
from trained_networks import CALIBRATION, Images, downloaded, export  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from bmx_melius.deployment.runtime.packed_files import read_packed  # noqa: E402
from bmx_melius.files.stored_networks import read_table  # noqa: E402
from model_zoo.shipped import FOLDER  # noqa: E402

PROCESSORS = ('cortex-m0', 'cortex-m4')
TIMER = 'cortex-m3'  # the one of both boards
LEVEL = '-O2'


def main():
    """Run all networks on both processors and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data-dir', type=pathlib.Path, help='folder with the four files of Fashion-MNIST')
    parser.add_argument('--images', type=int, default=100, help='test images that each processor classifies (default: %(default)s)')
    arguments = parser.parse_args()
    install_tools({name: package for name, package in test_mcu.TOOLS.items() if 'arm' in name})
    folder = arguments.data_dir or downloaded()
    networks = read_table(FOLDER)
    training, test = Images(folder, networks[0], True, CALIBRATION), Images(folder, networks[0], most=arguments.images)
    for network in networks:
        with tempfile.TemporaryDirectory() as scratch:
            run_network(network, training, test, pathlib.Path(scratch))


def run_network(network, training, test, folder):
    """Export a network as C, run it on all processors, and compare it with the engine."""
    exported, calibration, packed = export(network, folder), training.normalized(network), folder / 'packed'
    bmx.convert(exported.symbol_file, exported.parameter_file(0), packed, (1, *calibration.shape[1:]), calibration=calibration)
    facts = test_mcu.exported_facts(folder, packed)
    normalized = test.normalized(network)
    logits, bits = bmx.Session(packed)(normalized), bits_of_layers(read_packed(packed)[0], [normalized])
    for processor in PROCESSORS:
        place = folder / processor
        program = [
            f'PROCESSOR={processor}',
            f'LEVEL={LEVEL}',
            f'NETWORK={folder / test_mcu.NAME}',
            *LARGE_CORTEX_M0,
            *test_mcu.test_program(facts),
        ]
        test_mcu.build(place, program)
        test.pixels.tofile(place / 'images.bin')
        output = test_mcu.run(place, [*program, COUNTED])
        test_mcu.check_results(place, facts, logits, bits)
        memory = f'{facts["flash_bytes"]:,} bytes of flash, {facts["ram_bytes"]:,} of RAM'
        print(f'{network.name}, {processor}: {memory}; {test_mcu.instructions(facts, output, TIMER)}', flush=True)
    print(f'{network.name}: the bits of {facts["binary_layers"]} binary layers and the logits of {len(normalized)} images equal the engine')


if __name__ == '__main__':
    run_main(main)
