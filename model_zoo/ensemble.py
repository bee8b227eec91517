"""Ensembles of binary networks: BENN, Zhu et al. 2019, *Binary Ensemble Neural Network*, arXiv:1806.07550, with six members.

The output is the mean of the members' logits (soft vote of equal weights, as in bagging). In the paper, members are trained one by one, on
bootstrapped samples of the data (bagging) or on samples weighted by the errors of the members before (boosting). Neither is part of this
project: ``train_imagenet.py`` trains all members at once with the loss of the mean, which is another method of training. For independent
members train the single network, `MEMBER`, several times with different seeds, and load the results::

    net = get_model('resnet18_benn')
    for number, member in enumerate(net.members):
        member.load_parameters(f'run{number}.params')
"""

import dataclasses
from typing import Any, Optional

from mxnet.gluon import HybridBlock, nn

from .method_resnets import BLOCKS, METHODS, Architecture, MethodResNet, Options
from .registry import register

MEMBERS = 6
MEMBER = 'resnet{}_xnor'  # the networks of the paper have the layers of XNOR-Net


@dataclasses.dataclass(frozen=True)
class EnsembleArchitecture:
    """Architecture of an ensemble: that of its members."""

    member: Architecture


class Ensemble(HybridBlock):
    """MEMBERS networks of the same architecture, whose logits are averaged.

    Parameters
    ----------
    architecture : EnsembleArchitecture
    options : Options or None
        Of each member. None: the defaults of the method.
    classes : int
        Number of outputs.
    prefix, params
        As in every Gluon block.

    Input (N, 3, H, W), float32; output (N, classes) logits. ``members`` are the networks.
    """

    def __init__(self, architecture: EnsembleArchitecture, options: Optional[Options] = None, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.members = nn.HybridSequential(prefix='')
            for number in range(MEMBERS):
                self.members.add(MethodResNet(architecture.member, options, classes, prefix=f'member{number}_'))

    def hybrid_forward(self, F, x):
        return F.add_n(*(member(x) for member in self.members)) / MEMBERS


for _depth, _blocks in BLOCKS.items():
    _method = METHODS[MEMBER]
    register(f'resnet{_depth}_benn', Ensemble, EnsembleArchitecture(Architecture(_blocks, _method)), _method.options)
