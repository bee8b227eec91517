"""Training: `fit` for networks and batches of the user, and the parts of which ``train_imagenet.py`` is made.

`options` reads the flags of a run; `network`, `objective` and `optimization` make what is trained, `loop` trains it, and `run` records it
in its folder, with `saving` and `recording`. `series` are several runs, one after the other.
"""

import importlib

from ..process import require_mxnet

_PUBLIC = {
    'fit': 'loop',
    'Training': 'loop',
    'Objective': 'objective',
    'Mixup': 'objective',
    'CutMix': 'objective',
    'Teacher': 'objective',
    'Progress': 'progress',
    'make_schedule': 'optimization',
}
__all__ = list(_PUBLIC)


def __getattr__(name):  # imported when first used: other parts of the library read checkpoints without the training loop
    if name not in _PUBLIC:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    require_mxnet(__name__)
    return getattr(importlib.import_module(f'.{_PUBLIC[name]}', __name__), name)
