"""Generate xnor_net_plus.npz: a binary convolution with learned scales of channels, computed by a library of the authors of XNOR-Net++.

Usage: ``python make_xnor_net_plus.py CHECKOUT``, a clone of github.com/1adrianb/binary-networks-pytorch at commit
51bdeee64d3da6306aebe4f2464eebd778bf7a38. The stored arrays were made with PyTorch 2.13.0 (CPU).
"""

import functools
import sys

from recording import Recording
from torch import nn

CHECKOUT = sys.argv[1]
sys.path.insert(0, CHECKOUT)
from bnn import BConfig, layers, ops  # noqa: E402

binary = BConfig(
    activation_pre_process=ops.BasicInputBinarizer,
    activation_post_process=ops.BasicScaleBinarizer,
    weight_pre_process=functools.partial(ops.XNORWeightBinarizer, compute_alpha=False),
)
recording = Recording('xnor_net_plus', 'github.com/1adrianb/binary-networks-pytorch', CHECKOUT)
convolution = layers.Conv2d(4, 6, 3, padding=1, bias=False, bconfig=binary)
recording.run('unit', nn.Sequential(nn.BatchNorm2d(4), convolution), (2, 4, 5, 5))
recording.save()
