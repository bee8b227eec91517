"""Program that reads the weights of a Keras file with h5py and prints them.

The HDF5 library is not made for untrusted files: a damaged one can crash it. So `keras` runs this in a separate process, with limited
memory. The output is a line of JSON, ``{"error": text}`` or ``{"layers": [[name, [[weight, dtype, shape], ...]], ...]}``, followed in the
second case by the elements of all arrays.
"""

import json
import os
import resource
import sys

from ..limited_process import limit

_MODEL = 'model_weights'


class _Refused(Exception):
    """The file is refused; the message is one line."""


def main(path, max_bytes, memory):
    """Print the layers of a file whose arrays take at most `max_bytes`, with at most `memory` bytes of address space."""
    import h5py

    limit(memory, resource.RLIMIT_AS)
    try:
        with h5py.File(path, 'r') as file:
            _require_self_contained(path, file, h5py)
            root = file.get(_MODEL, file)
            layers = _layers(path, root, _Budget(path, max_bytes))
            _require_all_read(path, root, h5py.Dataset, sum(len(weights) for _, weights in layers))
    except _Refused as error:
        return _answer({'error': str(error)})
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError, OverflowError) as error:
        return _answer({'error': f'{path} is not an HDF5 file of Keras weights, or is damaged: {error}'})
    described = [[name, [[kind, array.dtype.str, array.shape] for kind, array in weights.items()]] for name, weights in layers]
    _answer({'layers': described}, [array for _, weights in layers for array in weights.values()])


def _answer(head, arrays=()):
    with os.fdopen(os.dup(sys.stdout.fileno()), 'wb') as output:
        output.write(json.dumps(head).encode() + b'\n')
        for array in arrays:
            output.write(array.tobytes())


class _Budget:
    """What is left of the bytes that the arrays of a file may take."""

    def __init__(self, path, left):
        self._path, self._left = path, left

    def take(self, dataset):
        """Return the elements of a dataset as an array of numbers. A file of kilobytes can announce terabytes."""
        import numpy as np

        if dataset.dtype.kind not in 'fiu':
            raise _Refused(f'{self._path}: {dataset.name} has elements of type {dataset.dtype}; weights are numbers')
        self._left -= dataset.size * dataset.dtype.itemsize
        if self._left < 0:
            raise _Refused(f'{self._path} is not an HDF5 file of Keras weights, or is damaged: its arrays take too much memory')
        return np.atleast_1d(dataset[()])


def _require_self_contained(path, file, h5py):
    """Raise `_Refused` if the file refers to data in other files: a downloaded file could otherwise read any file of this machine."""
    own = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)  # h5py follows external links on access, so their types are checked first
    linked = file.id.links.visit(lambda name, link: None if link.type in own else name, info=True)
    name = file.visititems(lambda name, item: name if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual) else None)
    if linked is not None or name is not None:
        outside = name if linked is None else linked.decode(errors='replace')
        raise _Refused(f'{path} is refused: its {outside} lies in another file; Keras files contain their weights')


def _layers(path, root, budget):
    names = _names(root, 'layer_names')
    if names is None:
        raise _Refused(
            f'{path} has no attribute layer_names: it was not written by save_weights or save of Keras 2; '
            "in Keras 3, model.save('....h5') writes this format"
        )
    layers = []
    for name in names:
        weights = {}
        for weight in _names(root[name], 'weight_names') or []:
            kind = weight.rpartition('/')[2].partition(':')[0]
            if kind in weights:
                raise _Refused(f'{path}: layer {name} has several weights called {kind}; nested layers are not supported')
            weights[kind] = budget.take(root[name][weight])
        if weights:
            layers.append((name, weights))
    return layers


def _require_all_read(path, root, dataset, read):
    stored = []
    root.visititems(lambda name, item: stored.append(name) if isinstance(item, dataset) else None)
    if len(stored) != read:
        raise _Refused(f'{path} holds {len(stored)} arrays, but its lists of layers and weights name {read}')


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
