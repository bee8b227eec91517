"""Packages of Debian for another processor, unpacked into a folder for programs in an emulator, without changing the system."""

import pathlib
import shutil
from typing import Sequence

from commands import output_of


def unpack(packages: Sequence[str], architecture: str, folder: pathlib.Path) -> pathlib.Path:
    """Download packages and what they depend on, and unpack them, unless that was done before.

    Debian only: the servers of Ubuntu for x86-64 have no packages for other processors.

    Parameters
    ----------
    packages : sequence of str
    architecture : str
        Of the packages, ``arm64`` for example.
    folder : pathlib.Path
        Where everything is kept. What it contained before is removed.

    Returns
    -------
    pathlib.Path
        Folder with ``usr`` and ``lib``.

    Raises
    ------
    UserError
        If apt-get or dpkg-deb fails.
    """
    root, ready = folder / 'root', folder / 'packages'
    if ready.exists() and ready.read_text().split() == list(packages):
        return root
    shutil.rmtree(folder, ignore_errors=True)
    for path in (folder / 'apt' / 'lists' / 'partial', folder / 'apt' / 'archives' / 'partial', root):
        path.mkdir(parents=True, exist_ok=True)
    state = folder / 'apt'
    (state / 'status').write_text('')  # nothing is installed, so that everything is downloaded
    options = {'Dir::State::lists': state / 'lists', 'Dir::State::status': state / 'status', 'Dir::Cache': state}
    options.update({'APT::Architecture': architecture, 'APT::Architectures': architecture})
    options.update({'APT::Sandbox::User': 'root', 'Debug::NoLocking': '1'})
    apt = ['apt-get', '-qq', *(word for name, value in options.items() for word in ('-o', f'{name}={value}'))]
    output_of([*apt, 'update'])
    output_of([*apt, 'install', '--yes', '--download-only', '--no-install-recommends', *packages])
    for package in (state / 'archives').glob('*.deb'):
        output_of(['dpkg-deb', '--extract', package, root])
    ready.write_text(' '.join(packages))
    return root
