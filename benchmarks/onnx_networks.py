"""Networks of PyTorch authors at their real sizes: exported to ONNX, imported, and timed in PyTorch, ONNX Runtime and packed.

The networks consist of the expressions of the named repositories (``tests/data/onnx/networks.py``) with seeded weights; the networks of
Bitorch are its layers, BNext, BinaryViT and BHViT are their authors' code. A row of the table has the convolutions and dense layers that
became binary, the sizes of the ONNX model, of the packed parameters and of those with 8-bit real-valued layers, the processor time and
memory of the import, the processor time of one image in one thread, least and median (PyTorch as the authors run it, in inference mode),
how many times the packed network is faster, and the largest difference of an output between ONNX Runtime and the packed network, as a part
of the largest output. All run in turns, with an int8 MobileNet 1.0 in ONNX Runtime, and processor time does not count what other programs
take.

Run, in an environment with ``tests/data/onnx/requirements-pytorch.txt`` and, for BNext, ``einops``, ``timm`` and ``torchinfo``, for
BinaryViT and BHViT ``timm==0.9.16`` and ``transformers==4.46.3`` (Python 3.11; MXNet is not needed), after ``make``: ``PYTHONPATH=. python
benchmarks/onnx_networks.py [NAME ...]``. Results: docs/benchmarks.md.
"""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'tests' / 'data' / 'onnx'))

import make_pytorch
import networks
import numpy as np
import torch
from torch import nn

import bmx_melius as bmx
from bmx_melius.bench import worker
from bmx_melius.bench.comparison import make_input
from bmx_melius.bench.peers import onnx_mobilenet, onnx_model
from bmx_melius.process import processor

STAGES = {'blocks': (4, 4, 4, 4), 'widths': (64, 128, 256, 512), 'classes': 1000}
MOBILE_WIDTHS = (32, 64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024)
MOBILE_STRIDES = (1, 2, 1, 2, 1, 2, *(1,) * 5, 2, 1)
DEIT_SMALL = {'features': 384, 'heads': 6, 'patch': 16, 'patches': 196, 'blocks': 4, 'classes': 1000}
BINARYVIT = 'Phuoc-Hoan-Le/BinaryViT@ca16a43'
BHVIT = 'IMRL/BHViT@4093f5b'
CIFAR = {'widths': (*(16,) * 3, *(32,) * 3, *(64,) * 3), 'strides': (1, 1, 1, 2, 1, 1, 2, 1, 1)}


class AlexNet(nn.Sequential):
    """AlexNet of XNOR-Net-PyTorch, for 227 x 227."""

    def __init__(self, classes=1000):
        def conv(inputs, outputs, kernel):
            return networks.XNORLayer(nn.BatchNorm2d(inputs, eps=1e-4), nn.Conv2d(inputs, outputs, kernel, 1, kernel // 2))

        super().__init__(
            nn.Conv2d(3, 96, 11, 4), nn.BatchNorm2d(96, eps=1e-4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            conv(96, 256, 5), nn.MaxPool2d(3, 2), conv(256, 384, 3), conv(384, 384, 3), conv(384, 256, 3), nn.MaxPool2d(3, 2), nn.Flatten(),
            networks.XNORLayer(nn.BatchNorm1d(256 * 36, eps=1e-4), nn.Linear(256 * 36, 4096)),
            networks.XNORLayer(nn.BatchNorm1d(4096, eps=1e-4), nn.Linear(4096, 4096)),
            nn.BatchNorm1d(4096, eps=1e-3), nn.Dropout(), nn.Linear(4096, classes),
        )  # fmt: skip
        networks.binarize_stored_weights(self)


class AdaBinBlock(networks.BiRealBlock):
    """Block of AdaBin's ResNet for ImageNet, with one convolution."""

    def __init__(self, inputs, outputs, stride):
        super().__init__(inputs, outputs, stride)
        self.conv, self.activation = networks.AdaBinConv(inputs, outputs, 3, stride, 1, bias=False), networks.Maxout(outputs)

    def forward(self, x):
        return self.activation(self.norm(self.conv(x)) + (x if self.shortcut is None else self.shortcut(x)))


def adabin18():
    """Return AdaBin's ResNet-18 for ImageNet."""
    network = networks.ResNet(AdaBinBlock, **STAGES)
    network.stem.insert(2, networks.Maxout(64))
    network.fc = nn.Sequential(nn.BatchNorm1d(512), network.fc)
    return network


def meliusnet22():
    """Return MeliusNet22 of Bitorch's layers: as in `make_packages`, its own class leaves out the improvement blocks."""
    import make_packages
    from bitorch.layers import QConv2d  # noqa: F401  Bitorch requires its layers to be imported first
    from bitorch.models.common_layers import get_initial_layers
    from bitorch.models.densenet import DenseLayer
    from bitorch.models.meliusnet import ImprovementBlock

    features, layers = 64, get_initial_layers('grouped_stem', 3, 64)
    for blocks, reduced in ((4, 160), (5, 224), (4, 256), (4, None)):
        for _ in range(blocks):
            layers += [make_packages.Concatenate(DenseLayer(features, 64, 0, 0, 1)), ImprovementBlock(64, features + 64)]
            features += 64
        if reduced:
            layers += [nn.BatchNorm2d(features), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(features, reduced, 1, bias=False)]
            features = reduced
    return nn.Sequential(*layers, nn.BatchNorm2d(features), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 1000))


@contextlib.contextmanager
def cloned(repository):
    """Yield a folder with the code of a repository of GitHub, OWNER/NAME@COMMIT."""
    name, commit = repository.split('@')
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(['git', 'clone', '--quiet', f'https://github.com/{name}', folder], check=True)
        subprocess.run(['git', '-C', folder, 'checkout', '--quiet', commit], check=True)
        yield folder


def bnext(size):
    """Return BNext of the authors' code, with signs in place of the slopes that training begins with."""
    with cloned(make_pytorch.BNEXT) as folder:
        spec = importlib.util.spec_from_file_location('bnext', pathlib.Path(folder, 'src', 'bnext.py'))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    network = module.BNext(1000, size)
    for buffer_name, buffer in network.named_buffers():
        if buffer_name.endswith('temperature'):
            buffer.zero_()
    return network


class Transformer(nn.Module):
    """Transformer of its authors' code, with random numbers for factors and shifts that training begins with as 0."""

    def __init__(self, repository, config, kind, flags):
        super().__init__()
        with cloned(repository) as folder:
            sys.path.insert(0, folder)
            import models

            options = argparse.Namespace(nb_classes=1000, drop_path=0.0, **flags)
            self.network = models.get_model(options, f'{folder}/configs/{config}', kind, 1, 1)
            sys.path.remove(folder)
        for name in [name for name, module in sys.modules.items() if (getattr(module, '__file__', None) or '').startswith(folder)]:
            del sys.modules[name]  # another repository has modules of these names
        for parameter in self.network.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, 0, 0.1)

    def forward(self, x):
        return self.network(x, return_dict=False)[0]


def binaryvit():
    """Return BinaryViT with the flags of its script."""
    flags = dict.fromkeys(('avg_res3', 'avg_res5', 'replace_ln_bn'), True)
    flags |= dict.fromkeys(('disable_layerscale', 'enable_cls_token', 'some_fp'), False)
    return Transformer(BINARYVIT, 'binaryvit-small-patch4-224', 'extra-res-pyramid', flags)


def bhvit():
    """Return BHViT-tiny with the flags of its script."""
    flags = dict.fromkeys(('shift3', 'shift5', 'replace_ln_bn', 'some_fp'), True)
    flags |= dict.fromkeys(('disable_layerscale', 'enable_cls_token', 'gsb', 'recu'), False)
    with contextlib.redirect_stdout(sys.stderr):  # on which its code prints what it uses
        return Transformer(BHVIT, 'BHViT_tiny', 'dbhvit', flags)


NETWORKS = {  # name: title, function that builds it, size of the image
    'birealnet18': ('Bi-Real Net 18', lambda: networks.ResNet(networks.BiRealBlock, **STAGES), 224),
    'birealnet34': ('Bi-Real Net 34', lambda: networks.ResNet(networks.BiRealBlock, **{**STAGES, 'blocks': (6, 8, 12, 6)}), 224),
    'reactnet18': ('ReActNet 18', lambda: networks.ResNet(networks.ReActBlock, **STAGES), 224),
    'reactnet-a': ('ReActNet-A', lambda: networks.ReActNetA(MOBILE_WIDTHS, MOBILE_STRIDES, 1000), 224),
    'bnext-t': ('BNext-T', lambda: bnext('tiny'), 224),
    'bnext-s': ('BNext-S', lambda: bnext('small'), 224),
    'bnext-l': ('BNext-L', lambda: bnext('large'), 224),
    'alexnet': ('XNOR-Net-PyTorch AlexNet', AlexNet, 227),
    'meliusnet22': ('Bitorch, MeliusNet22', meliusnet22, 224),
    'transformer': ('4 blocks of BiBERT, size of DeiT-S', lambda: networks.VisionTransformer(**DEIT_SMALL), 224),
    'transformer-bits': (
        'the same with attention of bits',
        lambda: networks.VisionTransformer(bits=True, token=False, **DEIT_SMALL),
        224,
    ),
    'binaryvit': ('BinaryViT-S', binaryvit, 224),
    'bhvit': ('BHViT-tiny', bhvit, 224),
    'adabin18': ('AdaBin ResNet-18', adabin18, 224),
    'irnet20': ('IR-Net ResNet-20', lambda: networks.CifarResNet(networks.IRConv, lambda _: nn.Hardtanh(), **CIFAR), 32),
    'adabin20': ('AdaBin ResNet-20', lambda: networks.CifarResNet(networks.AdaBinConv, networks.Maxout, **CIFAR), 32),
}

DYNAMO = ('bhvit',)  # whose model of the older exporter has a `Split` of wrong sizes


def build(name):
    """Return a network with seeded weights and realistic statistics, for inference."""
    torch.manual_seed(1)
    _, function, size = NETWORKS[name]
    return make_pytorch.prepare(function(), (3, size, size), images=4)


def import_costs(exported, prefix):
    """Import a model in another process; return the seconds of processor time and the GB of memory, 2^30 bytes, of its largest process."""
    command = [sys.executable, '-m', 'bmx_melius', 'import-onnx', str(exported), prefix, '--zero-is-positive', '--no-verify']
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(started.pid, 0)
    if status:
        raise SystemExit(f'{" ".join(command)}: failed')
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def measure(name, folder, repetitions, rounds):
    """Export, import and time a network; return the cells of its row."""
    title, _, size = NETWORKS[name]
    network, shape = build(name), (1, 3, size, size)
    exported, prefix, int8_prefix = folder / f'{name}.onnx', str(folder / f'{name}-packed'), str(folder / f'{name}-int8')
    make_pytorch.export(network, torch.zeros(shape), exported, 18 if name in DYNAMO else 17, dynamo=name in DYNAMO)
    import_seconds, memory = import_costs(exported, prefix)
    options = {'zero_is_positive': True, 'verify': False}  # all outputs are compared below
    images = np.random.RandomState(1).standard_normal((8, *shape[1:])).astype(np.float32)
    reports = [
        bmx.import_onnx(exported, prefix, **options),
        bmx.import_onnx(
            exported, int8_prefix, calibration=images, min_correlation=-1, **options
        ),  # random weights amplify each changed sign
    ]
    array = make_input(shape)
    data, session, int8_session = torch.from_numpy(array), bmx.Session(prefix, threads=1), bmx.Session(int8_prefix, threads=1)
    run_model, _ = onnx_model.prepare({'file': exported}, array, 1)
    run_mobilenet, _ = onnx_mobilenet.prepare({'width': 1.0, 'int8': True}, make_input((1, 3, 224, 224)), 1)

    def run_torch():
        with torch.inference_mode():
            return network(data)

    functions = run_torch, run_model, lambda: session(array), lambda: int8_session(array), run_mobilenet
    seconds = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, seconds):
            found += worker.time_runs(function, repetitions, 1, time.process_time)
    torch_seconds, model_seconds, packed_seconds, *_ = seconds = list(map(np.array, seconds))
    (expected,), packed = run_model(), session(array)
    report, lengths = reports[0], [reports[0].conversion.size_before, *(one.conversion.size_after for one in reports)]
    return [
        title,
        f'{size} x {size}',
        f'{report.binary_layers} of {len(report.layers)}',
        *(f'{length / 2**20:.3g}' for length in lengths),
        f'{import_seconds:.0f} s, {memory:.1f} GB',
        *(f'{found.min() * 1e3:.2f} ({np.median(found) * 1e3:.2f})' for found in seconds),
        *(f'{found.min() / packed_seconds.min():.1f}' for found in (torch_seconds, model_seconds)),
        f'{np.abs(packed - expected).max() / np.abs(expected).max():.0e}',
    ]


def main():
    """Print the table of the named networks, by default of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('names', nargs='*', metavar='NAME', help=f'networks (default: all): {", ".join(NETWORKS)}')
    parser.add_argument('--repetitions', type=int, default=5, help='timed runs of each in a turn (default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=10, help='turns (default: %(default)s)')
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NETWORKS):
        parser.error(f'unknown networks: {", ".join(sorted(unknown))}')
    torch.set_num_threads(1)
    os.environ.setdefault('BMX_MELIUS_MEMORY_LIMIT', str(20 << 30))  # BNext-L has 1.3 GB, and as many numbers between its layers
    header = ['network', 'input', 'binary layers', 'ONNX (MB)', 'packed (MB)', 'packed, int8 (MB)', 'import']
    header += ['PyTorch (ms)', 'ONNX Runtime (ms)', 'packed (ms)', 'packed, int8 (ms)', 'MobileNet int8, ONNX Runtime (ms)']
    header += ['PyTorch / packed', 'ONNX Runtime / packed', 'difference']
    print(f'{processor()}, PyTorch {torch.__version__}\n\n| {" | ".join(header)} |\n|{"-|" * len(header)}', flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or NETWORKS:
            print('|', ' | '.join(measure(name, pathlib.Path(folder), arguments.repetitions, arguments.rounds)), '|', flush=True)


if __name__ == '__main__':
    main()
