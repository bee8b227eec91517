"""Time the packed MeliusNets, and MobileNet 1.0 in MXNet: batch 1, one thread, 224 x 224, in turns.

The time is that of the processor, which on an idle core is the time that a run takes. Other programs that share the core do not count,
except for what they evict from its caches.

Run: ``python benchmarks/zoo_latency.py``, about a minute on an idle core. benchmarks/README.md has the figures.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.update(OMP_NUM_THREADS='1', MXNET_USE_OPERATOR_TUNING='0')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from bmx_melius.bench.comparison import make_input  # noqa: E402  the environment comes first
from bmx_melius.bench.networks import pack  # noqa: E402
from bmx_melius.bench.peers import mxnet_zoo, session  # noqa: E402
from bmx_melius.process import processor  # noqa: E402
from model_zoo import get_model  # noqa: E402

NETWORKS = [f'meliusnet{name}' for name in ('22', '29', '42', '59', 'a', 'b', 'c')]
SHAPE = (1, 3, 224, 224)
PER_TURN = 5
WARM_UP = 2  # untimed runs of each turn


def packed(name, folder):
    """Return a function that runs a packed network with random weights, whose files are written into `folder`."""
    prefix = pack(get_model(name, norm_kwargs={'momentum': 0.0}), os.path.join(folder, name), SHAPE)
    return session.prepare({'prefix': prefix}, make_input(SHAPE), 1)[0]


def mobilenet(fused):
    """Return a function that runs the full-precision MobileNet 1.0 in MXNet."""
    return mxnet_zoo.prepare({'network': 'mobilenet1.0', 'fused': fused}, make_input(SHAPE), 1)[0]


def time_turn(run):
    """Return the processor time of each of `PER_TURN` runs, in milliseconds."""
    for _ in range(WARM_UP):
        run()
    times = []
    for _ in range(PER_TURN):
        started = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - started))
    return times


def main():
    """Print a table with the minimum and the median time of each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--turns', type=int, default=40, help=f'turns of {PER_TURN} timed runs (default: %(default)s)')
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: packed(name, folder) for name in NETWORKS}
        runs.update({'mobilenet1.0 in MXNet': mobilenet(False), 'mobilenet1.0 in MXNet, fused': mobilenet(True)})
        times = {name: [] for name in runs}
        for _ in range(turns):
            for name, run in runs.items():
                times[name] += time_turn(run)
    print(f'{processor()}; one thread, one image, milliseconds of processor time\n\n| network | minimum | median |\n|-|-|-|')
    for name, each in times.items():
        print(f'| {name} | {min(each):.2f} | {statistics.median(each):.2f} |')


if __name__ == '__main__':
    main()
