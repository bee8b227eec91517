"""Generate group_net.npz: a small GroupNet with scales and gates, computed by the authors' code.

Usage: ``python make_group_net.py CHECKOUT``, a clone of github.com/bohanzhuang/Group-Net-image-classification at commit
bbe9c24270cd84264b9319a4227d563f8e07a921. The stored arrays were made with PyTorch 2.13.0 (CPU).

The network has one block per stage and 4 channels after the stem, without bias, and its last pooling is over the whole map. In the first
stage of training its maps are padded with 0, where the code pads with 1.
"""

import sys
import types

from recording import Recording
from torch import nn
from torch.nn import functional as F

CHECKOUT = sys.argv[1]
sys.path.insert(0, CHECKOUT)
import new_layers  # noqa: E402
from model_ablation_1 import BasicBlock, ResNet  # noqa: E402

WIDTH = 4  # channels after the stem


def network(bits):
    """Return the network of the first stage of training (32 bits) or of the second one (1 bit)."""
    net = ResNet(BasicBlock, [1, 1, 1, 1], bitW=bits, bitA=bits, num_classes=5)
    net.inplanes = WIDTH
    net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
    net.layer1 = net._make_layer(BasicBlock, WIDTH, 2, add_gate=False)
    net.layer2, net.layer3, net.layer4 = (net._make_layer(BasicBlock, factor * WIDTH, 1, stride=2) for factor in (2, 4, 8))
    net.avgpool, net.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * WIDTH, 5)
    return net


recording = Recording('group_net', 'github.com/bohanzhuang/Group-Net-image-classification', CHECKOUT)
recording.run('network', network(1), (2, 3, 64, 64), whole_gradients=False)
new_layers.F = types.SimpleNamespace(pad=lambda x, pad, mode, value: F.pad(x, pad, mode, 0), conv2d=F.conv2d)
recording.run('first stage', network(32), (2, 3, 64, 64), whole_gradients=False)
recording.save()
