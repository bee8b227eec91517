"""List of the networks of this zoo: published accuracy, operations and size, paper, and weights, without building a network.

``counts.json`` has the counts of each network with its default options, ``times.json`` the times of packed networks by processor, of which
the list has the first. `tools/zoo_counts.py` and `tools/zoo_times.py` write them.
"""

import dataclasses
import fnmatch
import functools
import json
import pathlib
import re
from typing import Any, Dict, List, Optional, Tuple, Union

from bmx_melius.files.stored_networks import StoredNetwork

from .published import networks_of, read_published
from .registry import find, get_model_list
from .store import WEIGHTS, Weights

COUNTS_FILE = pathlib.Path(__file__).with_name('counts.json')
TIMES_FILE = pathlib.Path(__file__).with_name('times.json')
OWN = 'bmx-melius'  # kind of the weights that ship with this project


@dataclasses.dataclass(frozen=True)
class PublishedAccuracy:
    """A published accuracy on the validation set of ImageNet, or on the test set that the source names.

    Attributes
    ----------
    top1 : str
        Percent, as printed.
    source : str
    options : dict
        Arguments of `get_model`, beside the name, that differ from the defaults.
    """

    top1: str
    source: str
    options: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository of the authors of a network.

    Attributes
    ----------
    source : str
        Paper.
    repository : str
    licence : str or None
        Of its code and weights; None: it has none, so that nothing of it may be redistributed.
    weights : tuple of str
        Networks of this zoo of which it has trained weights, or links to some.
    """

    source: str
    repository: str
    licence: Optional[str]
    weights: Tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ListedNetwork:
    """What is known of a network.

    Attributes
    ----------
    name : str
        As in `get_model_list`.
    source : str or None
        Paper or code that describes it.
    counts : dict or None
        ``bops``, ``flops`` and ``ops`` for an image of `input_shape`, and ``size_bytes``, of the network with its default options, as
        `bmx_melius.summary` counts them; None if these do not determine its architecture.
    milliseconds : float or None
        Least time of the packed network for an image of `input_shape`, with one thread; None if it was not measured.
    timed_on : str or None
        Processor of this time.
    accuracies : tuple of PublishedAccuracy
        With the default options first.
    weights : tuple of Weights
        Files published by others that ``get_model(pretrained=...)`` loads.
    stored : StoredNetwork or None
        Weights of this project, which ``get_model(pretrained=True)`` loads.
    input_shape : tuple of int
        Shape (C, H, W) of the images for which it was published, or of those of `stored`.
    repository : Repository or None
        Code of the authors, if its licence was read.
    """

    name: str
    source: Optional[str]
    counts: Optional[Dict[str, float]]
    milliseconds: Optional[float]
    timed_on: Optional[str]
    accuracies: Tuple[PublishedAccuracy, ...]
    weights: Tuple[Weights, ...]
    stored: Optional[StoredNetwork]
    input_shape: Tuple[int, int, int]
    repository: Optional[Repository]


def list_models(pattern: str = '*', pretrained: Union[bool, str] = False) -> List[str]:
    """Return the names of the networks of this zoo that match a pattern, sorted.

    Parameters
    ----------
    pattern : str
        As for file names, ``*melius*``, in any case; without ``*``, ``?`` and ``[`` it may be anywhere in the name.
    pretrained : bool or str
        True: only networks with pretrained weights; or a value of `get_pretrained_list`, only those with weights of this source, or
        ``'bmx-melius'``, only those whose weights ship with this project.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from model_zoo import list_models
    >>> list_models('*melius*', pretrained=True)
    ['meliusnet22', 'meliusnet_fashion']
    """
    pattern = pattern.lower() if re.search(r'[*?[]', pattern) else f'*{pattern.lower()}*'
    kinds = {name: {weights.kind for weights in WEIGHTS if weights.network == name} for name in get_model_list()}
    for name, of_network in kinds.items():
        if find(name).stored:
            of_network.add(OWN)
    return [
        name
        for name in fnmatch.filter(kinds, pattern)
        if not pretrained or (kinds[name] if pretrained is True else pretrained in kinds[name])
    ]


def describe(name: str) -> ListedNetwork:
    """Return what is known of a network of `list_models`."""
    weights = tuple(weights for weights in WEIGHTS if weights.network == name)
    network = find(name)
    counts = network.stored.counts if network.stored else _counts().get(name)
    processor, times = _times()
    time = times.get(name)
    return ListedNetwork(
        name=name,
        source=network.source,
        counts=counts,
        milliseconds=time and time['least'],
        timed_on=time and processor,
        accuracies=tuple(_accuracies().get(name, ())),
        weights=weights,
        stored=network.stored,
        input_shape=network.input_shape,
        repository=_repositories().get(network.source),
    )


@functools.lru_cache(maxsize=None)
def _counts():
    return json.loads(COUNTS_FILE.read_text(encoding='utf-8'))


@functools.lru_cache(maxsize=None)
def _times():
    """Return the first processor of the file, and the times of the networks on it, by their name."""
    processor, timed = next(iter(json.loads(TIMES_FILE.read_text(encoding='utf-8')).items()))
    return processor, timed['milliseconds']


@functools.lru_cache(maxsize=None)
def _repositories():
    """Return the repositories of authors, by their paper."""
    return {row['source']: Repository(**{**row, 'weights': tuple(row['weights'])}) for row in read_published()['repositories']}


@functools.lru_cache(maxsize=None)
def _accuracies():
    """Return the published accuracies, by the name of the network."""
    content, found = read_published(), {}
    sources = [(f'MeliusNet paper, table {table["number"]}', table['rows']) for table in content['tables']]
    for source, rows in [*sources, ("authors' training logs", content['logs']['rows'])]:
        for row in rows:
            sizes = [row] if 'name' in row['get_model'] else [row[size] for size in row['get_model']]
            for figures, network in zip(sizes, networks_of(row)):
                known = find(network['name'])
                if known and figures['top1_percent']:
                    options = {key: value for key, value in network.items() if key != 'name' and known.defaults.get(key) != value}
                    found.setdefault(network['name'], []).append(PublishedAccuracy(figures['top1_percent'], source, options))
    for row in content['methods']:
        found.setdefault(row['name'], []).insert(0, PublishedAccuracy(row['top1_percent'], f'{row["from"]}, {row["data"]}', {}))
    return {name: sorted(accuracies, key=lambda accuracy: len(accuracy.options)) for name, accuracies in found.items()}
