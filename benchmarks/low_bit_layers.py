"""Benchmark of layers with weights and activations of one and two bits: MXNet's float graph against the packed layer.

A layer is a BatchNorm and a 3x3 convolution of the method, with random parameters, for one image, in one thread. The methods and the two
forms run alternately, so that other load affects all of them alike. Printed are the lower quartiles of the times in milliseconds, their
ratio, the weights of the packed layer in bits per weight, and the number of binary convolutions. MXNet quantizes the weights in every run,
which takes most of the time where maps are small; ``float`` is an ordinary convolution without quantization.
Results: docs/internals/conversion.md.
Run: ``OMP_NUM_THREADS=1 python benchmarks/low_bit_layers.py``.
"""

import argparse
import pathlib
import tempfile
import time

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.gluon import nn

import bmx_melius as bmx
from bmx_melius.deployment.runtime.packed_files import read_packed
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.lq_net import LQConv2D
from bmx_melius.nn.methods.syq import SYQConv2D

LAYERS = {
    'float': lambda channels: nn.Conv2D(channels, 3, padding=1, use_bias=False),
    'sign': lambda channels: bmx.BinaryConv2D(channels, 3, padding=1),
    'DoReFa 2/2': lambda channels: DoReFaConv2D(channels, 3, padding=1),
    'HWGQ': lambda channels: HWGQConv2D(channels, 3, padding=1),
    'LQ-Net 1/2': lambda channels: LQConv2D(channels, 3, padding=1),
    'SYQ 1/2': lambda channels: SYQConv2D(channels, 3, padding=1),
}
SIZES = {64: 56, 128: 28, 256: 14, 512: 7}  # channels -> height and width, as in ResNet 18
RUNS = 3  # in a row


def random_parameters(net):
    for name, parameter in net.collect_params().items():
        if name.endswith(('running_mean', 'beta')):
            parameter.set_data(nd.random.normal(scale=0.3, shape=parameter.shape))
        elif name.endswith('running_var') or name.endswith('_scale'):
            parameter.set_data(nd.random.uniform(0.5, 2, parameter.shape))
        elif name.endswith('_basis') and parameter.shape == (2,):
            parameter.set_data(nd.array([0.5, 0.8]))


def forms(layer, shape, folder):
    """Return the two functions to compare and the packed program."""
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(), layer)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    x = nd.random.normal(shape=shape)
    net(x)
    random_parameters(net)
    net.export(str(folder / 'layer'))
    bmx.convert(folder / 'layer-symbol.json', folder / 'layer-0000.params', folder / 'packed', shape)
    session, array = bmx.Session(folder / 'packed', threads=1), x.asnumpy()
    return (lambda: net(x).wait_to_read()), (lambda: session(array)), read_packed(folder / 'packed')[0]


def seconds_of(function):
    begin = time.perf_counter()
    for _ in range(RUNS):
        function()
    return (time.perf_counter() - begin) / RUNS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=30)
    rounds = parser.parse_args().rounds
    print('| channels, map | layer | MXNet | packed | ratio | bits per weight | binary convolutions |\n|-|-|-|-|-|-|-|')
    for channels, size in SIZES.items():
        rows, times = {}, {}
        for name, layer in LAYERS.items():
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = forms(layer(channels), (1, channels, size, size), pathlib.Path(folder))
            times[name] = [], []
        for _ in range(rounds):
            for name, (in_mxnet, packed, _) in rows.items():
                times[name][0].append(seconds_of(in_mxnet))
                times[name][1].append(seconds_of(packed))
        for name, (_, _, program) in rows.items():
            slow, fast = (1e3 * np.quantile(each, 0.25) for each in times[name])
            weights = [operation.arrays['weight'] for operation in program.operations if 'weight' in operation.arrays]
            bits = sum(weight.size * (1 if weight.dtype == bool else 32) for weight in weights) / (9 * channels**2)
            count = sum(weight.dtype == bool for weight in weights)
            print(
                f'| {channels}, {size}x{size} | {name} | {slow:.2f} | {fast:.2f} | {slow / fast:.1f} | {bits:.1f} | {count} |', flush=True
            )


if __name__ == '__main__':
    main()
