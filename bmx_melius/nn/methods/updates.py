"""What methods prescribe after each update of a network, besides the step of the optimizer."""

from mxnet.gluon import Block

from .bnext import clip_shares
from .bnn import clip_latent_weights
from .lq_net import update_bases
from .xnor_net import center_latent_weights


def finish_update(net: Block) -> None:
    """Clip or centre latent weights, clip shares of BNext, and update the bases of LQ-Net. Call it after each ``Trainer.step``.

    Other networks do not change.
    """
    clip_latent_weights(net)
    center_latent_weights(net)
    update_bases(net)
    clip_shares(net)
