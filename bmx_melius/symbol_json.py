"""Parser and checks of ``-symbol.json`` files: a list of nodes, each of which refers to its inputs by their positions in the list.

MXNet also loads symbols that contain a cycle or two variables of one name, but cannot run them correctly. Files are therefore checked here
before MXNet loads them. The checks do not need MXNet.
"""

import collections
import json
import os

from .errors import UserError
from .files import read_text

VARIABLE = 'null'  # the operator of variables


class SymbolJson:
    """The nodes and outputs of a symbol.

    Attributes
    ----------
    nodes : list of dict
        With the keys ``op`` (`VARIABLE` for an input or a parameter), ``name``, ``inputs`` and optionally ``attrs``, a dict of str to str.
        An input is a list that begins with the position of a node and the number of one of its outputs.
    heads : list of list
        The outputs of the symbol, in the same form as inputs.
    attributes : dict
        Attributes of the whole symbol, such as MXNet's version.
    """

    def __init__(self, nodes, heads, attributes):
        self.nodes, self.heads, self.attributes = nodes, heads, attributes

    @classmethod
    def parse(cls, text, path):
        """Parse a JSON text and check what MXNet does not check; `path` is its name in error messages.

        Raises
        ------
        UserError
            If the text is not a symbol, contains a cycle, or has two variables of one name.
        """
        try:
            content = json.loads(text)
            symbol = cls(content['nodes'], content['heads'], content.get('attrs', {}))
            symbol._check()
        except UserError:
            raise
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            reason = error if type(error) in (ValueError, json.JSONDecodeError) else repr(error)
            raise UserError(
                f'{os.fspath(path)} holds no symbol of MXNet, or a damaged one ({reason}): give an exported PREFIX-symbol.json'
            ) from error
        try:
            require_different_names(node['name'] for node in symbol.nodes if node['op'] == VARIABLE)
            symbol._require_no_cycle()
        except UserError as error:
            raise UserError(f'{os.fspath(path)}: {error}') from error
        return symbol

    @classmethod
    def read(cls, path):
        """Read a file and `parse` its text. Also raises `UserError` if the file cannot be read."""
        return cls.parse(read_text(path), path)

    def _check(self):
        for node in self.nodes:
            if not isinstance(node['op'], str) or not isinstance(node['name'], str):
                raise ValueError(f'the operator {node["op"]!r} or the name {node["name"]!r} is not a string')
            if not all(isinstance(text, str) for text in node.get('attrs', {}).values()):
                raise ValueError(f'node {node["name"]} has an attribute that is not a string')
            if not all(_is_entry(source, len(self.nodes)) for source in node['inputs']):
                raise ValueError(f'node {node["name"]} reads a node that does not exist')
        if not self.heads or not all(_is_entry(head, len(self.nodes)) for head in self.heads):
            raise ValueError('an output is not a node')

    def _require_no_cycle(self):
        waiting_for = [len(node['inputs']) for node in self.nodes]
        readers = collections.defaultdict(list)
        for index, node in enumerate(self.nodes):
            for source, *_ in node['inputs']:
                readers[source].append(index)
        ready = [index for index, count in enumerate(waiting_for) if not count]
        while ready:
            for reader in readers[ready.pop()]:
                waiting_for[reader] -= 1
                if not waiting_for[reader]:
                    ready.append(reader)
        if any(waiting_for):
            raise UserError(f'node {self.nodes[_on_cycle(self.nodes, waiting_for)]["name"]} reads its own result: the symbol is damaged')


def _is_entry(entry, count):
    index, slot = entry[:2]
    return type(index) is int and type(slot) is int and 0 <= index < count and slot >= 0  # True is an int, too


def _on_cycle(nodes, waiting_for):
    """Return the index of a node on a cycle: follow inputs among the unresolved nodes until one is visited a second time."""
    index, seen = next(index for index, count in enumerate(waiting_for) if count), set()
    while index not in seen:
        seen.add(index)
        index = next(source for source, *_ in nodes[index]['inputs'] if waiting_for[source])
    return index


def require_different_names(variables):
    """Raise `UserError` if two variables have the same name, because parameters are looked up by name."""
    for name, count in collections.Counter(variables).items():
        if count > 1:
            raise UserError(f'{count} variables of the symbol are called {name}: give each variable a different name')
