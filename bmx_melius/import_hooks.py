"""Hooks into Python's import system: an action after another package is imported, and former names of moved modules."""

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Callable, Mapping


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once, as soon as the package `name` is imported: now if it is, else at the end of its import."""
    if sys.modules.get(name) is not None:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


def add_former_names(names: Mapping[str, str]) -> None:
    """Let modules that have moved be imported by their former names as well: a mapping of former to present names."""
    sys.meta_path.insert(0, _FormerNames(names))  # first: submodules of a moved package would else be found twice


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
        module.__spec__ = module.__spec__.loader_state  # that of its present name
