"""Generate bireal_net.npz: blocks and a small network of Bi-Real Net, computed by the authors' code.

Usage: ``python make_bireal_net.py CHECKOUT``, a clone of github.com/liuzechun/Bi-Real-net at commit
f58aa4d1fa730fcd2e33c3745fcd6c479d7f42e3. The stored arrays were made with PyTorch 2.13.0 (CPU).
"""

import sys

from recording import Recording

CHECKOUT = sys.argv[1]
sys.path.insert(0, f'{CHECKOUT}/pytorch_implementation/BiReal18_34')
import birealnet  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 4  # channels after the stem of the network

recording = Recording('bireal_net', 'github.com/liuzechun/Bi-Real-net', CHECKOUT)
recording.run('block', birealnet.BasicBlock(4, 4), (2, 4, 6, 6))
downsample = nn.Sequential(nn.AvgPool2d(2, 2), birealnet.conv1x1(4, 8), nn.BatchNorm2d(8))
recording.run('halving block', birealnet.BasicBlock(4, 8, 2, downsample), (2, 4, 6, 6))
net = birealnet.BiRealNet(birealnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
net.inplanes = WIDTH
net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
net.layer1 = net._make_layer(birealnet.BasicBlock, WIDTH, 2)
net.layer2, net.layer3, net.layer4 = (net._make_layer(birealnet.BasicBlock, factor * WIDTH, 1, stride=2) for factor in (2, 4, 8))
net.fc = nn.Linear(8 * WIDTH, 5)
recording.run('network', net, (2, 3, 64, 64), whole_gradients=False)
recording.save()
