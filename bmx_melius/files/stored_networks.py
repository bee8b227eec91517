"""Trained networks in a folder with a table: the weights that ship with the project, in ``model_zoo/weights``.

The table is ``networks.json``, a list with an object for each network; `StoredNetwork` describes the fields. ``tools/store_weights.py``
writes it. Commands read it without MXNet, which the zoo needs.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any, Dict, List, Optional, Union

from ..errors import UserError
from .io import read_text, sha256

TABLE = 'networks.json'
Path = Union[str, os.PathLike]


def network_key(name: str) -> str:
    """Return `name` in lower case without underscores: ``meliusnetA``, ``meliusneta`` and ``meliusnet_a`` are the same network."""
    return name.lower().replace('_', '')


@dataclasses.dataclass(frozen=True)
class StoredNetwork:
    """A row of the table.

    Attributes
    ----------
    folder : str
        Where the files are; not in the table.
    name : str
    model : dict
        Arguments of `model_zoo.get_model` for the network without weights.
    class_names : list of str
    input : dict
        Preprocessing of images, `InputSpec.to_json`.
    data : str
        Images of the training and of the evaluation.
    images, correct : int
        Number of images of the evaluation, and of those that the packed network classifies correctly.
    top1, interval : float, list of float
        Accuracy in percent, and its 95 % interval (Wilson).
    epochs : int
        Epochs of the training.
    command, commit : str
        The command that trained it, and the commit of this project that ran it.
    licence : str
    counts : dict
        `Summary.counts` for the shape of its input.
    files : dict of str to dict
        Name -> ``bytes`` and ``sha256``: the packed network, NAME-symbol.json and NAME-0000.params, and NAME.params, the weights for
        training. The two agree: the packed network is made from these weights.
    """

    folder: str
    name: str
    model: Dict[str, Any]
    class_names: List[str]
    input: Dict[str, Any]
    data: str
    images: int
    correct: int
    top1: float
    interval: List[float]
    epochs: int
    command: str
    commit: str
    licence: str
    counts: Dict[str, float]
    files: Dict[str, Dict[str, Any]]

    def packed(self) -> str:
        """Return the prefix of the packed files. Raises `UserError` if one of them is damaged or missing."""
        for ending in ('-symbol.json', '-0000.params'):
            self._checked(self.name + ending)
        return os.path.join(self.folder, self.name)

    def training_weights(self) -> str:
        """Return the path of the weights for training. Raises `UserError` if the file is damaged or missing."""
        return self._checked(f'{self.name}.params')

    def _checked(self, file):
        path = os.path.join(self.folder, file)
        if not os.path.isfile(path):
            raise UserError(
                f'{path} is missing, a file of the weights of {self.name}: install bmx-melius again. Weights for training of 1 MB and more '
                'are not in a wheel: copy the file from model_zoo/weights of the repository'
            )
        checksum = sha256(path)
        if checksum != self.files[file]['sha256']:
            raise UserError(
                f'{path} is damaged: its SHA-256 is {checksum}, not {self.files[file]["sha256"]} as in {TABLE}: install bmx-melius again'
            )
        return path


def read_table(folder: Path) -> List[StoredNetwork]:
    """Return the rows of the table of a folder; without a table none."""
    path = pathlib.Path(folder, TABLE)
    return [StoredNetwork(str(folder), **row) for row in json.loads(read_text(path))] if path.exists() else []


def find_stored(folder: Path, name: str) -> Optional[StoredNetwork]:
    """Return the row of a network by its name in any spelling; None if there is none."""
    return next((row for row in read_table(folder) if network_key(row.name) == network_key(name)), None)
