"""What methods prescribe after each update of a network, besides the step of the optimizer."""

from mxnet.gluon import Block

from .bnn import clip_latent_weights
from .lq_net import update_bases


def finish_update(net: Block) -> None:
    """Clip latent weights and update the bases of LQ-Net. Call it after each ``Trainer.step``; networks without either do not change."""
    clip_latent_weights(net)
    update_bases(net)
