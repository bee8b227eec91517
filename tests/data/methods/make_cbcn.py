"""Generate cbcn.npz: convolutions and blocks of CBCN, computed by the authors' code.

Usage: ``python make_cbcn.py CHECKOUT``, a clone of github.com/EnzoDuan/Circulant-Binary at commit
5e2e29aafa19a31c30d50d3ca31aff47191bfb54. The stored arrays were made with PyTorch 2.13.0 (CPU).

The compiled parts of that code need PyTorch 0.4 and are replaced here by functions that do what their sources in C and CUDA do: the sign
and its gradients, and the mapping of filters to their rotations, by the table of indices that the authors' Python code computes.
"""

import sys
import types

import torch
from recording import Recording
from torch import nn

CHECKOUT = sys.argv[1]


def clip_backward(values, gradient):
    """Multiply `gradient` in place by 2 - 2 |values|, or by 0 where a value exceeds 1 in magnitude."""
    gradient.mul_(torch.where(values.abs() > 1, torch.zeros_like(values), 2 - 2 * values.abs()))


def mapping_rotate(weight, indices):
    """Map filters (O, I, orientations, K, K) to (O * rotations, I * orientations, K, K).

    ``indices[..., r]`` are the places, counted from 1, to which rotation r moves the orientations and taps of a filter.
    """
    filters, features, orientations, height, width = weight.shape
    taps = weight.flatten(2)
    moved = [taps[:, :, torch.argsort(places.long() - 1)] for places in indices.flatten(0, 2).T]
    return torch.stack(moved, dim=1).reshape(-1, features * orientations, height, width)


compiled = types.SimpleNamespace(forward=torch.sign, clip_backward=clip_backward)
functions = types.ModuleType('orn.functions')
functions.mapping_rotate = mapping_rotate
sys.modules.update({'BinActivateFunc_cpp': compiled, 'BinActivateFunc_cuda': compiled, 'orn.functions': functions})
sys.path[:0] = [f'{CHECKOUT}/install', f'{CHECKOUT}/ResNet18']
from orn.modules import ORConv2d  # noqa: E402
from resnet18_cifar import BasicBlock  # noqa: E402

ORIENTATIONS = 4


def resized(module):
    """Give filters the shape that the authors' constructor requests, by a call that today's PyTorch ignores."""
    for layer in module.modules():
        if isinstance(layer, ORConv2d):
            shape = (layer.out_channels, layer.in_channels, ORIENTATIONS, *layer.kernel_size)
            layer.weight = nn.Parameter(torch.empty(shape))
    return module


def convolution(stride):
    return resized(ORConv2d(2, 3, ORIENTATIONS, 3, stride=stride, padding=1, bias=False))


recording = Recording('cbcn', 'github.com/EnzoDuan/Circulant-Binary', CHECKOUT)
for stride in (1, 2):
    recording.run(f'convolution {stride}', convolution(stride), (2, 8, 5, 6))
recording.run('block', resized(BasicBlock(2, 2, M=ORIENTATIONS)), (2, 8, 6, 6))
downsample = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.AvgPool2d(2, 2))
recording.run('halving block', resized(BasicBlock(2, 4, 2, downsample, M=ORIENTATIONS)), (2, 8, 6, 6))
recording.save()
