"""Networks with weights of this project, which ship with it: ``weights/networks.json`` is their table, and each has a card beside it.

``tools/store_weights.py`` adds a network from the folder of a finished training.
"""

import pathlib

from bmx_melius.errors import UserError
from bmx_melius.files.stored_networks import StoredNetwork, find_stored, read_table

from .registry import find, register

FOLDER = pathlib.Path(__file__).with_name('weights')


def packed(name: str) -> str:
    """Return the prefix of the packed files of a network, for `bmx_melius.Session`.

    Parameters
    ----------
    name : str
        A network in ``list_models(pretrained='bmx-melius')``, in any spelling.

    Raises
    ------
    UserError
        If there is no such network, or a file is damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import bmx_melius as bmx
    >>> from model_zoo import packed
    >>> bmx.Session(packed('meliusnet_fashion'))(np.zeros((1, 1, 28, 28), np.float32)).shape
    (1, 10)
    """
    row = find_stored(FOLDER, name)
    if row is None:
        known = ', '.join(row.name for row in read_table(FOLDER))
        raise UserError(f'there are no packed files of {name}; networks with weights of this project: {known or "none yet"}')
    return row.packed()


def add(row: StoredNetwork) -> None:
    """Register a network of the table."""
    arguments = {name: value for name, value in row.model.items() if name not in ('name', 'classes')}
    base = find(row.model['name'])
    variant = base.with_defaults(arguments)
    register(
        row.name,
        base.build,
        variant.architecture,
        variant.options,
        source=base.source,
        preset=base.preset,
        classes=row.model['classes'],
        stored=row,
        input_shape=(row.input['channels'], row.input['size'], row.input['size']),
    )


for _row in read_table(FOLDER):
    add(_row)
