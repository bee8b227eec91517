"""Pretrained weights published by others: a table of files, their download and their cache.

A row describes a file on a server of a third party, which may become unavailable. Downloaded files are verified by checksum and kept.
"""

import dataclasses
import http.client
import os
import shutil
import socket
import urllib.error
import urllib.request

from tqdm import tqdm

from bmx_melius.errors import UserError
from bmx_melius.files.io import replacing, sha256

_TIMEOUT = 60  # seconds without data
_LARQ_RELEASES = 'https://github.com/larq/zoo/releases/download'


@dataclasses.dataclass(frozen=True)
class Weights:
    """A row of `WEIGHTS`.

    Attributes
    ----------
    network : str
        Name of the network in `model_zoo.get_model`.
    kind : str
        Origin of the weights, the value of get_model's ``pretrained``. It determines the file format.
    url, sha256 : str
        URL of the file, and its SHA-256 in hexadecimal as published.
    source, licence : str
        Page that documents the weights, and their licence.
    top1, top5 : float
        Published accuracy on the validation set of ImageNet in percent.
    """

    network: str
    kind: str
    url: str
    sha256: str
    source: str
    licence: str
    top1: float
    top5: float

    @property
    def filename(self) -> str:
        """Name of the file in the folder of weights."""
        return self.url.rpartition('/')[2]


def _larq(network, release, file, sha256, top1, top5, page='literature'):
    source = f'https://docs.larq.dev/zoo/api/{page}/'
    return Weights(network, 'larq', f'{_LARQ_RELEASES}/{release}/{file}', sha256, source, 'Apache-2.0', top1, top5)


# Files, checksums and accuracies are taken from the package larq-zoo 2.4.0 (larq_zoo/literature/*.py and larq_zoo/sota/quicknet.py).
WEIGHTS = [
    _larq('meliusnet22', 'meliusnet22-v0.1.0', 'meliusnet22_weights.h5',
          'c1ba85e8389ae326009665ec13331e49fc3df4d0f925fa8553e224f7362c18ed', 62.4, 83.9),
    _larq('binary_densenet28', 'binary_densenet-v0.1.0', 'binary_densenet_28_weights.h5',
          '21fe3ca03eed244df9c41a2219876fcf03e73800932ec96a3e2a76af4747ac53', 60.91, 82.83),
    _larq('binary_densenet37', 'binary_densenet-v0.1.0', 'binary_densenet_37_weights.h5',
          '8056a5d52c3ed86a934893987d09a06f59a5166aa9bddcaedb050f111d0a7d76', 62.89, 84.19),
    _larq('binary_densenet37_dilated', 'binary_densenet-v0.1.0', 'binary_densenet_37_dilated_weights.h5',
          '15c1bcd79b8dc22971382fbf79acf364a3f51049d0e584a11533e6fdbb7363d3', 64.34, 85.15),
    _larq('binary_densenet45', 'binary_densenet-v0.1.0', 'binary_densenet_45_weights.h5',
          'd00a0d26fbd2dba1bfba8c0306c770f3aeea5c370e99f963bb239bd916f72c37', 64.59, 85.21),
    _larq('resnet_e18', 'resnet_e-v0.1.0', 'resnet_e_18_weights.h5',
          'bde4a64d42c164a7b10a28debbe1ad5b287c499bc0247ecb00449e6e89f3bf5b', 58.32, 80.79),
    _larq('birealnet18', 'birealnet-v0.3.0', 'birealnet_weights.h5',
          '6e6efac1584fcd60dd024198c87f42eb53b5ec719a5ca1f527e1fe7e8b997117', 57.47, 79.84),
    _larq('real_to_binary18', 'r2b-v0.1.0', 'r2b_weights.h5',
          'e8fd16ca1ab9810ac3835f24f5c62758a57bc32a615f73aaa50d382d2b9617e1', 65.01, 85.72),
    _larq('alexnet_xnor', 'xnornet-v0.2.0', 'xnornet_weights.h5',
          'e6ba24f785655260ae76a2ef1fab520e3528243d9c8fac430299cd81dbeabe10', 44.96, 69.18),
    _larq('quicknet_small', 'quicknet-v1.0', 'quicknet_small_weights.h5',
          '1ac3b07df7f5a911dd0b49febb2486428ddf1ca130297c403815dfae5a1c71a2', 59.4, 81.8, 'sota'),
    _larq('quicknet', 'quicknet-v1.0', 'quicknet_weights.h5',
          '8aba9e4e5f8d342faef04a0b2ae8e562da57dbb7d15162e8b3e091c951ba756c', 63.3, 84.6, 'sota'),
    _larq('quicknet_large', 'quicknet-v1.0', 'quicknet_large_weights.h5',
          'c5158e8a59147b31370becd937825f4db8a5cdf308314874f678f596629be45c', 66.9, 87.0, 'sota'),
]  # fmt: skip


def fetch(weights: Weights, root: str) -> str:
    """Return the path of a file of weights in the folder `root`; download it if it does not exist.

    Parameters
    ----------
    weights : Weights
    root : str
        May begin with ``~``; created if it does not exist.

    Raises
    ------
    UserError
        If the file cannot be downloaded, or has another checksum, whether downloaded or existing. Such a file is not used.
    """
    folder = os.path.expanduser(root)
    path = os.path.join(folder, weights.filename)
    if os.path.isdir(path):
        raise UserError(f'{path} is a folder: remove it to download {weights.url} there')
    if os.path.exists(path):
        checksum = sha256(path)
        if checksum != weights.sha256:
            raise UserError(f'{path} is not {weights.url}: its SHA-256 is {checksum}, not {weights.sha256}; remove it to download it again')
        return path
    os.makedirs(folder, exist_ok=True)
    with replacing(path) as temporary:
        _download(weights, path, temporary)
        checksum = sha256(temporary)
        if checksum != weights.sha256:
            raise UserError(f'{weights.url} has changed or is incomplete: its SHA-256 is {checksum}, not {weights.sha256}; it is not used')
    return path


def _download(weights, path, temporary):
    bar = {'desc': weights.filename, 'unit': 'B', 'unit_scale': True}
    try:
        with urllib.request.urlopen(weights.url, timeout=_TIMEOUT) as response, open(temporary, 'wb') as file:
            size = getattr(response, 'length', None)  # None if the server does not send it, and for file: URLs
            with tqdm.wrapattr(response, 'read', total=size, **bar) as source:
                shutil.copyfileobj(source, file)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, socket.timeout) as error:
        reason = getattr(error, 'reason', error)
        raise UserError(f'cannot download {weights.url} ({reason}); if you have the file, put it at {path}') from error
