"""Benchmark of `bmx-melius score`: images per second with one process and several, on each engine that is installed.

MeliusNet22 with random weights classifies JPEG files of 500x375 pixels, read from the disk's cache. The time includes the start of the
workers and of the engine; rows are repeated in turns, and the median of each is printed, with its ratio to one local process. Results:
docs/scoring.md. Run: ``python benchmarks/scoring_throughput.py``.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import PIL.Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bmx_melius.bench.networks import pack  # noqa: E402
from bmx_melius.bench.rounds import process_environment  # noqa: E402
from bmx_melius.vision.preprocessing import InputSpec  # noqa: E402
from model_zoo import get_model  # noqa: E402

PACKAGES = {'local': 'pyarrow', 'dask': 'distributed', 'ray': 'ray'}


def pack_network(folder):
    spec = InputSpec()
    return pack(get_model('meliusnet22', norm_kwargs={'momentum': 0.0}), f'{folder}/net', (1, *spec.shape), input_spec=spec)


def write_photos(folder, count):
    random = np.random.RandomState(0)
    for number in range(count):
        coarse = PIL.Image.fromarray(random.randint(0, 256, (12, 16, 3)).astype(np.uint8))
        coarse.resize((500, 375), PIL.Image.BICUBIC).save(folder / f'{number:05d}.jpg', quality=90)


def images_per_second(packed, photos, output, engine, workers, part_size):
    command = [sys.executable, '-m', 'bmx_melius', 'score', packed, photos, '--output', output, '--json']
    options = ['--engine', engine, '--workers', workers, '--part-size', part_size]
    done = subprocess.run(list(map(str, command + options)), env=process_environment(), check=True, stdout=subprocess.PIPE, cwd=ROOT)
    return json.loads(done.stdout)['images_per_second']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--images', type=int, default=2000, help='(default: %(default)s)')
    parser.add_argument('--part-size', type=int, default=100, help='images of a task (default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=3, help='(default: %(default)s)')
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    engines = [engine for engine, package in PACKAGES.items() if importlib.util.find_spec(package)]
    rows = [('local', 1), *((engine, cores) for engine in engines)]
    with tempfile.TemporaryDirectory() as folder:
        packed, photos = pack_network(folder), pathlib.Path(folder, 'photos')
        photos.mkdir()
        write_photos(photos, arguments.images)
        speeds = {row: [] for row in rows}
        for number in range(arguments.rounds):
            for row in rows:
                output = pathlib.Path(folder, f'{"-".join(map(str, row))}-{number}')
                speeds[row].append(images_per_second(packed, photos, output, *row, arguments.part_size))
    single = statistics.median(speeds['local', 1])
    print('| engine | processes | images per second | ratio |\n|-|-|-|-|')
    for (engine, workers), values in speeds.items():
        median = statistics.median(values)
        print(f'| {engine} | {workers} | {median:.1f} | {median / single:.2f} |')


if __name__ == '__main__':
    main()
