"""Published figures of networks, and the networks of this zoo that have them; `bmx-melius tables` prints both.

All of them are in ``published.json``, once: tables 1 to 4 of the MeliusNet paper as printed, the authors' training logs, the accuracies
that the authors of other methods publish (``methods``), the licences of their code and weights as far as they were read
(``repositories``), and the contradictions between figures. Figures are strings, so that no digit is
lost. Keys that are not of the paper:

``get_model`` of a row
    Arguments of `model_zoo.get_model` for its network; in table 3 one set of arguments for each size class. The network may be missing.
``contradictions`` of a row
    Column -> ``id`` in the list of contradictions, for figures that differ from the counts or from other figures.
``others``
    Networks that no table has, with arguments that differ from the defaults.
"""

import json
import pathlib
from typing import Any, Dict, List

from bmx_melius.gluon_cv import gluoncv

from .registry import IMAGENET, find, get_model_list, listed_name

_FILE = pathlib.Path(__file__).with_name('published.json')
WITHOUT_SIZE = ('meliusnet_flex',)  # the caller determines its architecture


def has_counts(name: str) -> bool:
    """Return whether a network of this zoo has counts in ``counts.json``: a size, and no weights of this project, which have their own."""
    return name not in WITHOUT_SIZE and find(name).stored is None


def is_of_imagenet(name: str) -> bool:
    """Return whether a network of this zoo has counts for images of ImageNet."""
    return has_counts(name) and find(name).input_shape == IMAGENET


def read_published() -> Dict[str, Any]:
    """Return the content of ``published.json``, with all networks that it does not name added to ``others``."""
    content = json.loads(_FILE.read_text(encoding='utf-8'))
    rows = [row for table in (*content['tables'], content['logs']) for row in table['rows']] + content['others']
    named = {network['name'] for row in rows for network in networks_of(row)}
    content['others'] += [{'get_model': {'name': name}} for name in get_model_list() if name not in named and is_of_imagenet(name)]
    return content


def networks_of(row: Dict[str, Any]) -> List[Dict[str, str]]:
    """Return the arguments of `model_zoo.get_model` for the networks of a row: one set, in table 3 one for each size class."""
    arguments = row['get_model']
    return [arguments] if 'name' in arguments else list(arguments.values())


def is_available(name: str) -> bool:
    """Return whether `model_zoo.get_model` builds a network of this name, from this zoo or from GluonCV."""
    return listed_name(name) is not None or name in gluoncv.model_zoo.get_model_list()
