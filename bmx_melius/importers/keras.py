"""Reading the weights of Keras networks from their HDF5 files, without TensorFlow.

Keras up to version 2 writes two kinds of file: weights alone, where the groups of the layers lie at the root, and whole models, where they
lie in the group ``model_weights`` (https://github.com/keras-team/keras/blob/v2.15.0/keras/saving/legacy/hdf5_format.py). The attributes
``layer_names`` and ``weight_names`` hold the order; an attribute too long for HDF5 is cut into ``layer_names0``, ``layer_names1``, ...
"""

import dataclasses
import os

import numpy as np

from ..errors import UserError

_MODEL = 'model_weights'


@dataclasses.dataclass(frozen=True)
class KerasLayer:
    """A layer that has weights: its name, and its arrays by the last part of their names, such as ``kernel`` or ``moving_mean``."""

    name: str
    weights: dict


def read_keras_layers(path):
    """Read the layers that have weights, in the order of the network.

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
        When h5py is not installed, or the file is of another kind or damaged, or would have HDF5 read other files.
    OSError
        When the file cannot be opened.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UserError('reading Keras files needs h5py, which is not installed: pip install bmx-melius[larq]') from error
    path = os.fspath(path)
    with open(path, 'rb'):
        pass  # Python's own error names the file
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
        raise UserError(f'{path} is no HDF5 file of Keras weights, or damaged: {error}') from error


def _require_self_contained(path, file, h5py):
    """Refuse what HDF5 would read from other files: by it a file that was downloaded could read any file of this machine."""
    own = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)  # external links are followed as soon as they are looked up
    linked = file.id.links.visit(lambda name, link: None if link.type in own else name, info=True)
    name = file.visititems(lambda name, item: name if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual) else None)
    if linked is not None or name is not None:
        outside = name if linked is None else linked.decode(errors='replace')
        raise UserError(f'{path} is refused: its {outside} lies in another file; files of Keras hold their weights themselves')


def _layers(path, root):
    names = _names(root, 'layer_names')
    if names is None:
        raise UserError(
            f'{path} says no layer_names: it is no file that save_weights or save of Keras 2 wrote; '
            "Keras 3 writes this format by model.save('....h5')"
        )
    layers = []
    for name in names:
        weights = {}
        for weight in _names(root[name], 'weight_names') or []:
            kind = weight.rpartition('/')[2].partition(':')[0]
            if kind in weights:
                raise UserError(f'{path}: layer {name} has several weights called {kind}; only layers of one part are known')
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
    """A list of names that Keras wrote as an attribute, in one piece or in several; None where there is neither."""
    if attribute in group.attrs:
        pieces = [group.attrs[attribute]]
    else:
        pieces = []
        while f'{attribute}{len(pieces)}' in group.attrs:
            pieces.append(group.attrs[f'{attribute}{len(pieces)}'])
        if not pieces:
            return None
    return [name.decode() if isinstance(name, bytes) else str(name) for piece in pieces for name in piece]
