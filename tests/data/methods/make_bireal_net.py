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

recording = Recording('bireal_net', 'github.com/liuzechun/Bi-Real-net', CHECKOUT)
recording.run('block', birealnet.BasicBlock(4, 4), (2, 4, 6, 6))
downsample = nn.Sequential(nn.AvgPool2d(2, 2), birealnet.conv1x1(4, 8), nn.BatchNorm2d(8))
recording.run('halving block', birealnet.BasicBlock(4, 8, 2, downsample), (2, 4, 6, 6))
recording.run('network', birealnet.BiRealNet(birealnet.BasicBlock, [2, 1, 1, 1], num_classes=5), (2, 3, 32, 32), whole_gradients=False)
recording.save()
