"""Hooks into the import system: an action after an import, former names, modules that others hide, or that are to be hidden."""

import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Callable, Iterator, Mapping, Sequence

from .errors import UserError


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once, as soon as the package `name` is imported: now if it is, else at the end of its import."""
    if sys.modules.get(name) is not None:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


def add_former_names(names: Mapping[str, str]) -> None:
    """Let modules that have moved be imported by their former names as well: a mapping of former to present names."""
    sys.meta_path.insert(0, _FormerNames(names))  # first: submodules of a moved package would else be found twice


@contextlib.contextmanager
def only_from(folder: str, names: Sequence[str]) -> Iterator[None]:
    """Let the import of modules within the block raise `UserError` if Python would find them elsewhere than in a folder.

    Python searches the working directory first, where a folder or file may have the same name.
    """
    finder = _OnlyFrom(os.path.realpath(folder), names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Let `import name` within the block raise ImportError, as if it were not installed. An import before stays valid after it."""
    imported = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]  # the import system raises for None
    try:
        yield
    finally:
        del sys.modules[name]
        if imported is not None:
            sys.modules[name] = imported


class _OnlyFrom(importlib.abc.MetaPathFinder):
    def __init__(self, folder, names):
        self._folder, self._names = folder, names

    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name) if name in self._names else None
        if spec is not None and spec.origin and os.path.commonpath([self._folder, os.path.realpath(spec.origin)]) != self._folder:
            place = os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
            raise UserError(
                f'{place} has the name of the module {name} of bmx_melius, which this command needs, and hides it: rename it, or run the '
                'command in another folder'
            )
        return None  # the other finders find it


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, name, action):
        self._name, self._action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self._name or self not in sys.meta_path:
            return None
        index = sys.meta_path.index(self)
        sys.meta_path.remove(self)  # the other finders find the package
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(index, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._action()

            spec.loader.exec_module = exec_module
        return spec


class _FormerNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        for former, present in self._names.items():
            if name == former or name.startswith(f'{former}.'):
                return ModuleSpec(name, self, loader_state=present + name[len(former) :])
        return None

    def create_module(self, spec):
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state  # of its present name
