"""Generate bireal_net.npz or reactnet.npz: blocks and a small network of Bi-Real Net or ReActNet, computed by the code of their authors.

Usage: ``python make_bireal_net.py NAME CHECKOUT``, a clone of the repository at the commit in `SOURCES`; of ReActNet, the ResNet in its
second step of training. The stored arrays were made with PyTorch 2.13.0 (CPU).
"""

import sys

from recording import Recording

SOURCES = {  # repository, commit, folder, blocks of the stages after the first one
    'bireal_net': ('github.com/liuzechun/Bi-Real-net', 'f58aa4d1fa730fcd2e33c3745fcd6c479d7f42e3', 'pytorch_implementation/BiReal18_34', 1),
    'reactnet': ('github.com/liuzechun/ReActNet', 'a6cd08d4605d94135faea6fd73354041e4130b52', 'resnet/2_step2', 2),
}
NAME, CHECKOUT = sys.argv[1:]
REPOSITORY, COMMIT, FOLDER, BLOCKS = SOURCES[NAME]
sys.path.insert(0, f'{CHECKOUT}/{FOLDER}')
import birealnet  # noqa: E402  (the name of the file in both)
from torch import nn  # noqa: E402

WIDTH = 4  # channels after the stem of the network

recording = Recording(NAME, REPOSITORY, CHECKOUT)
assert recording.metadata['commit'] == COMMIT
recording.run('block', birealnet.BasicBlock(4, 4), (2, 4, 6, 6))
downsample = nn.Sequential(nn.AvgPool2d(2, 2), birealnet.conv1x1(4, 8), nn.BatchNorm2d(8))
recording.run('halving block', birealnet.BasicBlock(4, 8, 2, downsample), (2, 4, 6, 6))
net = birealnet.BiRealNet(birealnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
net.inplanes = WIDTH
net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
net.layer1 = net._make_layer(birealnet.BasicBlock, WIDTH, 2)
net.layer2, net.layer3, net.layer4 = (net._make_layer(birealnet.BasicBlock, factor * WIDTH, BLOCKS, stride=2) for factor in (2, 4, 8))
net.fc = nn.Linear(8 * WIDTH, 5)
recording.run('network', net, (2, 3, 64, 64), whole_gradients=False)
recording.save()
