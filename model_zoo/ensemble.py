"""Ensembles of binary networks: BENN, Zhu et al., CVPR 2019, *Binary Ensemble Neural Network*, arXiv:1806.07550, of six members by default.

Members are trained one by one, each on its own bootstrap sample (bagging), or on images drawn with weights that the errors of the members
before determine (boosting), and vote. ``bmx-melius train`` does both: `bmx_melius.training.series.ensembles`. Networks trained
separately vote as well::

    net = get_model('resnet18_benn')
    for number, member in enumerate(net.members):
        member.load_parameters(f'run{number}.params')

Votes (`EnsembleOptions.vote`): the soft vote of the paper adds the probabilities of softmax, the hard vote counts the classes that the
members choose. The authors' code (github.com/XinDongol/BENN-PyTorch) adds the outputs before softmax instead. This is the default here, in
contrast to the paper, because it needs no operation that packed networks lack: such an ensemble is packed into one operator. The choice
does not affect the training of the members, so the same parameters can be loaded with any vote.
"""

import dataclasses
import math
import numbers
from typing import Any, Dict, Optional, Sequence

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError

from .registry import register
from .residual import DEPTHS, NETWORKS, ResidualArchitecture, ResidualNetwork
from .units import MethodOptions

MEMBERS = 6
MEMBER = 'resnet{}_xnor'  # the networks of the paper have the layers of XNOR-Net
LEAST_SHARE = 1e-6  # lower bound of a mean probability before its logarithm

# What is averaged over the members, computed from the logits of one of them
VOTES = {
    'logits': lambda F, logits, classes: logits,
    'softmax': lambda F, logits, classes: F.softmax(logits),
    'hard': lambda F, logits, classes: F.one_hot(F.argmax(logits, axis=1), depth=classes),
}


@dataclasses.dataclass(frozen=True)
class EnsembleOptions(MethodOptions):
    """Arguments of `model_zoo.get_model` for ensembles; the other options are for each member.

    Attributes
    ----------
    members : int
        Number of members.
    vote : {'logits', 'softmax', 'hard'}
        What is averaged: the logits, the probabilities of softmax, or 1 for the class of the largest logit and 0 for the others.
    alphas : sequence of float or None
        Weight of each member's vote, at least 0, up to a common factor, as boosting determines it. None: equal weights.
    """

    members: int = MEMBERS
    vote: str = 'logits'
    alphas: Optional[Sequence[float]] = None

    def __post_init__(self) -> None:
        if type(self.members) is not int or self.members < 1:  # a bool is an int as well
            raise UserError(f'members must be a positive number of networks, not {self.members!r}')
        if not isinstance(self.vote, str) or self.vote not in VOTES:
            raise UserError(f'vote must be {", ".join(VOTES)}, not {self.vote!r}')
        if self.alphas is not None and not _are_votes(self.alphas, self.members):
            raise UserError(f'alphas must be {self.members} finite numbers, at least 0 and not all 0, not {self.alphas!r}')


def _are_votes(alphas: Any, members: int) -> bool:
    """Return whether `alphas` has a weight for the vote of each of so many members."""
    return (
        isinstance(alphas, (list, tuple))
        and len(alphas) == members
        and all(isinstance(alpha, numbers.Real) and not isinstance(alpha, bool) and 0 <= alpha < math.inf for alpha in alphas)
        and any(alphas)
    )


@dataclasses.dataclass(frozen=True)
class EnsembleArchitecture:
    """Architecture of an ensemble: its members', and the name under which such a network is registered."""

    member: ResidualArchitecture
    member_name: str


class Ensemble(HybridBlock):
    """Networks of the same architecture, which vote.

    Parameters
    ----------
    architecture : EnsembleArchitecture
    options : EnsembleOptions or None
        None: the defaults of the method.
    classes : int
        Number of outputs.
    prefix, params
        As in every Gluon block.

    Input (N, 3, H, W), float32; output (N, classes): the weighted mean of the logits or, with another vote, the logarithm of the mean, at
    least the logarithm of LEAST_SHARE, so that softmax of the output gives the mean. ``members`` are the networks. A hard vote has no
    gradient.
    """

    def __init__(
        self, architecture: EnsembleArchitecture, options: Optional[EnsembleOptions] = None, classes: int = 1000, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        options = options or EnsembleOptions()
        self._options, self._classes = options, classes
        with self.name_scope():
            self.members = nn.HybridSequential(prefix='')
            for number in range(options.members):
                self.members.add(ResidualNetwork(architecture.member, options, classes, prefix=f'member{number}_'))

    def hybrid_forward(self, F, x):
        options = self._options
        votes = [VOTES[options.vote](F, member(x), self._classes) for member in self.members]
        if options.alphas is None:
            mean = F.add_n(*votes) / options.members
        else:
            mean = F.add_n(*(vote * (alpha / sum(options.alphas)) for vote, alpha in zip(votes, options.alphas)))
        return mean if options.vote == 'logits' else F.log(F.maximum(mean, LEAST_SHARE))


_OWN = ('members', 'vote', 'alphas')  # arguments of an ensemble that its members do not have


@dataclasses.dataclass(frozen=True)
class Members:
    """Members of an ensemble: the name of their network, their arguments, and their number."""

    name: str
    arguments: Dict[str, Any]
    count: int


def get_members(name: str, arguments: Dict[str, Any]) -> Optional[Members]:
    """Return the `Members` of the ensemble that ``get_model(name, **arguments)`` builds; None for any other network.

    Raises `UserError` for wrong values of the arguments that the members do not have.

    Examples
    --------
    >>> from model_zoo import get_members
    >>> get_members('resnet18_benn', {'members': 3, 'bits': 32})
    Members(name='resnet18_xnor', arguments={'bits': 32}, count=3)
    """
    ensemble = _ENSEMBLES.get(name)
    if ensemble is None:
        return None
    options = EnsembleOptions(**{key: value for key, value in arguments.items() if key in _OWN})
    return Members(ensemble.member_name, {key: value for key, value in arguments.items() if key not in _OWN}, options.members)


_ENSEMBLES = {}
for _depth, _layers in DEPTHS.items():
    _name, _row = f'resnet{_depth}_benn', NETWORKS[MEMBER]
    _ENSEMBLES[_name] = EnsembleArchitecture(ResidualArchitecture(_layers, _row), MEMBER.format(_depth))
    _options = EnsembleOptions(**vars(_row.options))
    register(_name, Ensemble, _ENSEMBLES[_name], _options, source='arXiv:1806.07550', preset=_row.preset)
