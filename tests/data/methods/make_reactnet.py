"""Generate reactnet.npz: blocks and a small network of ReActNet, computed by the authors' code of its ResNet (second step of training).

Usage: ``python make_reactnet.py CHECKOUT``, a clone of github.com/liuzechun/ReActNet at commit
a6cd08d4605d94135faea6fd73354041e4130b52. The stored arrays were made with PyTorch 2.13.0 (CPU).
"""

import sys

from recording import Recording

CHECKOUT = sys.argv[1]
sys.path.insert(0, f'{CHECKOUT}/resnet/2_step2')
import birealnet as reactnet  # noqa: E402  (the name of their file)
from torch import nn  # noqa: E402

WIDTH = 4  # channels after the stem of the network

recording = Recording('reactnet', 'github.com/liuzechun/ReActNet', CHECKOUT)
recording.run('block', reactnet.BasicBlock(4, 4), (2, 4, 6, 6))
downsample = nn.Sequential(nn.AvgPool2d(2, 2), reactnet.conv1x1(4, 8), nn.BatchNorm2d(8))
recording.run('halving block', reactnet.BasicBlock(4, 8, 2, downsample), (2, 4, 6, 6))
net = reactnet.BiRealNet(reactnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
net.inplanes = WIDTH
net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
net.layer1 = net._make_layer(reactnet.BasicBlock, WIDTH, 2)
net.layer2, net.layer3, net.layer4 = (net._make_layer(reactnet.BasicBlock, factor * WIDTH, 2, stride=2) for factor in (2, 4, 8))
net.fc = nn.Linear(8 * WIDTH, 5)
recording.run('network', net, (2, 3, 64, 64), whole_gradients=False)
recording.save()
