"""setuptools as the build backend (PEP 517), and MXNet among what a build needs where the operator for it is going to be compiled.

The operator is compiled from headers that come with MXNet. pip builds before it installs what a project requires, so that MXNet is
there only if it was installed earlier; otherwise it is asked for as a requirement of the build. pip keeps it for the installation.
"""

import os
import platform

from native_build import BuildError, find_compiler, find_mxnet
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that stay as they are

MXNET = 'mxnet>=1.9.1,<2'
_WITH_WHEELS = ('x86_64', 'aarch64')  # elsewhere, and without glibc, there is no MXNet to be had


def get_requires_for_build_wheel(config_settings=None):
    """What setuptools needs, and perhaps MXNet."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_mxnet()]


def get_requires_for_build_editable(config_settings=None):
    """What setuptools needs, and perhaps MXNet."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_mxnet()]


def _mxnet():
    """MXNet as a list of requirements; an empty one where it is there already, cannot be used, or is not wanted."""
    if os.environ.get('BMX_MELIUS_WITHOUT_MXNET') or find_mxnet():
        return []
    if platform.libc_ver()[0] != 'glibc' or platform.machine() not in _WITH_WHEELS:
        return []
    try:
        find_compiler()
    except BuildError:
        return []
    return [MXNET]
