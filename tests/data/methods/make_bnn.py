"""Generate bnn.npz: a small ResNet of BNN, computed by the authors' code.

Usage: ``python make_bnn.py CHECKOUT``, a clone of github.com/itayhubara/BinaryNet.pytorch at commit
80f6d4685510314a974889c1ca50a385431bb69f. The stored arrays were made with PyTorch 2.13.0 (CPU).

The network is the authors' for CIFAR-10, with fewer blocks and channels, and without their binary first and last layers, the normalization
of the output and the logarithm of the softmax. Their function of sign is of an old form, which is called as a static one here.
"""

import sys
import types

from recording import Recording
from torch import nn

CHECKOUT = sys.argv[1]
sys.modules.update({name: types.ModuleType(name) for name in ('torchvision', 'torchvision.transforms')})  # for images only
sys.path.insert(0, CHECKOUT)
from models.binarized_modules import Binarize  # noqa: E402
from models.resnet_binary import BasicBlock, ResNet_cifar10  # noqa: E402

Binarize.forward, Binarize.backward = staticmethod(Binarize.forward), staticmethod(Binarize.backward)
WIDTH = 4  # channels after the stem

recording = Recording('bnn', 'github.com/itayhubara/BinaryNet.pytorch', CHECKOUT)
net = ResNet_cifar10(depth=14)
net.inplanes = WIDTH
net.conv1, net.bn1 = nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH)
net.layer1 = net._make_layer(BasicBlock, WIDTH, 2)
net.layer2 = net._make_layer(BasicBlock, 2 * WIDTH, 2, stride=2, do_bntan=False)
net.layer3 = nn.Identity()
net.avgpool, net.bn2 = nn.AdaptiveAvgPool2d(1), nn.BatchNorm1d(2 * WIDTH)
net.fc, net.bn3, net.logsoftmax = nn.Linear(2 * WIDTH, 5), nn.Identity(), nn.Identity()
recording.run('network', net, (4, 3, 8, 8), whole_gradients=False)
recording.save()
