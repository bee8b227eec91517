"""Generate group_net.npz: a small GroupNet with scales and gates, computed by the authors' code.

Usage: ``python make_group_net.py CHECKOUT``, a clone of github.com/bohanzhuang/Group-Net-image-classification at commit
bbe9c24270cd84264b9319a4227d563f8e07a921. The stored arrays were made with PyTorch 2.13.0 (CPU).

The network has one block per stage and 4 channels after the stem, without bias, and its last pooling is over the whole map.
"""

import sys

from recording import Recording
from torch import nn

CHECKOUT = sys.argv[1]
sys.path.insert(0, CHECKOUT)
from model_ablation_1 import BasicBlock, ResNet  # noqa: E402

WIDTH = 4  # channels after the stem
net = ResNet(BasicBlock, [1, 1, 1, 1], bitW=1, bitA=1, num_classes=5)
net.inplanes = WIDTH
net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
net.layer1 = net._make_layer(BasicBlock, WIDTH, 2, add_gate=False)
net.layer2, net.layer3, net.layer4 = (net._make_layer(BasicBlock, factor * WIDTH, 1, stride=2) for factor in (2, 4, 8))
net.avgpool, net.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * WIDTH, 5)

recording = Recording('group_net', 'github.com/bohanzhuang/Group-Net-image-classification', CHECKOUT)
recording.run('network', net, (2, 3, 64, 64), whole_gradients=False)
recording.save()
