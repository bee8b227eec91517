"""Build backend (PEP 517): setuptools, with MXNet as a build requirement if the operator for MXNet is going to be compiled.

The operator is compiled with headers that MXNet installs. pip builds a project before it installs its requirements, so MXNet is available
during the build only if it was installed earlier, or if it is a build requirement. pip caches it for the installation.
"""

import os
import platform
import sys

from native_build import BuildError, find_compiler, find_mxnet
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that stay as they are

MXNET = 'mxnet>=1.9.1,<2'
_FIRST_WITHOUT_MXNET = (3, 12)  # Python versions that MXNet does not support; the reason is in setup.py
_WITH_WHEELS = ('x86_64', 'aarch64')  # for other machines, and without glibc, there are no wheels of MXNet


def get_requires_for_build_wheel(config_settings=None):
    """Return the build requirements of setuptools, and MXNet if necessary."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_mxnet()]


def get_requires_for_build_editable(config_settings=None):
    """Return the build requirements of setuptools, and MXNet if necessary."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_mxnet()]


def _mxnet():
    """Return MXNet as a list of requirements; empty if it is already installed, cannot be used, or is disabled."""
    if os.environ.get('BMX_MELIUS_WITHOUT_MXNET') or sys.version_info >= _FIRST_WITHOUT_MXNET or find_mxnet():
        return []
    if platform.libc_ver()[0] != 'glibc' or platform.machine() not in _WITH_WHEELS:
        return []
    try:
        find_compiler()
    except BuildError:
        return []
    return [MXNET]
