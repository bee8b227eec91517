"""Reader of Keras weights in HDF5 files that does not need TensorFlow.

Keras up to version 2 writes two kinds of files: only weights, with the groups of the layers at the root, and whole models, with these in
the group ``model_weights`` (https://github.com/keras-team/keras/blob/v2.15.0/keras/saving/legacy/hdf5_format.py). The attributes
``layer_names`` and ``weight_names`` give the order; an attribute too long for HDF5 is split into ``layer_names0``, ``layer_names1``, ...
"""

import dataclasses
import os

import numpy as np

from ..errors import UserError

_MODEL = 'model_weights'


@dataclasses.dataclass(frozen=True)
class KerasLayer:
    """A layer with weights: its name, and its arrays by the last part of their names, such as ``kernel`` or ``moving_mean``."""

    name: str
    weights: dict


def read_keras_layers(path):
    """Read the layers with weights, in the order of the network.

    Parameters
    ----------
    path : str or os.PathLike
        Written by ``model.save_weights('....h5')`` or ``model.save('....h5')`` of Keras 2.

    Returns
    -------
    list of KerasLayer with NumPy arrays

    Raises
    ------
    UserError
        If h5py is not installed, the file is of another kind or damaged, or it refers to data in other files.
    OSError
        If the file cannot be opened.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UserError('reading Keras files needs h5py, which is not installed: pip install bmx-melius[larq]') from error
    path = os.fspath(path)
    with open(path, 'rb'):
        pass  # the error of Python names the file, that of h5py does not
    try:
        with h5py.File(path, 'r') as file:
            _require_self_contained(path, file, h5py)
            root = file.get(_MODEL, file)
            layers = _layers(path, root)
            _require_all_read(path, root, h5py.Dataset, sum(len(layer.weights) for layer in layers))
            return layers
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UserError(f'{path} is not an HDF5 file of Keras weights, or is damaged: {error}') from error


def _require_self_contained(path, file, h5py):
    """Raise `UserError` if the file refers to data in other files: a downloaded file could otherwise read any file of this machine."""
    own = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)  # h5py follows external links on access, so their types are checked first
    linked = file.id.links.visit(lambda name, link: None if link.type in own else name, info=True)
    name = file.visititems(lambda name, item: name if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual) else None)
    if linked is not None or name is not None:
        outside = name if linked is None else linked.decode(errors='replace')
        raise UserError(f'{path} is refused: its {outside} lies in another file; Keras files contain their weights')


def _layers(path, root):
    names = _names(root, 'layer_names')
    if names is None:
        raise UserError(
            f'{path} has no attribute layer_names: it was not written by save_weights or save of Keras 2; '
            "in Keras 3, model.save('....h5') writes this format"
        )
    layers = []
    for name in names:
        weights = {}
        for weight in _names(root[name], 'weight_names') or []:
            kind = weight.rpartition('/')[2].partition(':')[0]
            if kind in weights:
                raise UserError(f'{path}: layer {name} has several weights called {kind}; nested layers are not supported')
            weights[kind] = np.atleast_1d(root[name][weight][()])
        if weights:
            layers.append(KerasLayer(name, weights))
    return layers


def _require_all_read(path, root, dataset, read):
    stored = []
    root.visititems(lambda name, item: stored.append(name) if isinstance(item, dataset) else None)
    if len(stored) != read:
        raise UserError(f'{path} holds {len(stored)} arrays, but its lists of layers and weights name {read}')


def _names(group, attribute):
    """Return a list of names from an attribute that Keras wrote in one or several pieces; None if it does not exist."""
    if attribute in group.attrs:
        pieces = [group.attrs[attribute]]
    else:
        pieces = []
        while f'{attribute}{len(pieces)}' in group.attrs:
            pieces.append(group.attrs[f'{attribute}{len(pieces)}'])
        if not pieces:
            return None
    return [name.decode() if isinstance(name, bytes) else str(name) for piece in pieces for name in piece]
