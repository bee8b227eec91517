"""GluonCV, also where PyTorch 2 is installed: it refuses to be imported beside it, and needs nothing of it for networks of MXNet."""

from .import_hooks import without

with without('torch'):
    import gluoncv

__all__ = ['gluoncv']
