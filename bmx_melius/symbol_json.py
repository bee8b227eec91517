"""Symbols as the JSON text that MXNet writes, read and edited: nodes in a list, each of which reads results of others by their positions.

MXNet loads a text in which a node reads its own result, or in which two variables have one name, and does not end well. So whoever reads
a file checks it here first. MXNet is not needed for that. The attributes of nodes are text, whose values the functions at the end give.
"""

import collections
import json
import os

from .errors import UserError
from .files import read_text

VARIABLE = 'null'  # the operator of nodes that are none
_MOST_OUTPUTS = 1 << 12  # of a node: more than any has, because MXNet does not check the number


class SymbolJson:
    """The nodes and outputs of a symbol.

    Attributes
    ----------
    nodes : list of dict
        In topological order: ``op`` (`VARIABLE` for an input or a parameter), ``name``, ``attrs``, a dict of str to str, and ``inputs``. An
        input is a list that begins with the position of a node and the number of one of its outputs.
    heads : list of list
        The outputs, of the same form as inputs.
    attributes : dict
        Of the symbol as a whole, such as MXNet's version.
    """

    def __init__(self, nodes=(), heads=(), attributes=None):
        self.nodes = [{**node, 'attrs': node.get('attrs', {})} for node in nodes]
        self.heads, self.attributes = list(heads), attributes or {}

    @classmethod
    def of(cls, symbol):
        """That of an `mxnet.sym.Symbol`."""
        content = json.loads(symbol.tojson())
        return cls(content['nodes'], content['heads'], content.get('attrs'))

    @classmethod
    def parse(cls, text, path):
        """Read a text and check what MXNet does not; errors call it `path`.

        Raises
        ------
        UserError
            When it is no symbol, a node reads its own result, or two variables have one name.
        """
        try:
            content = json.loads(text)
            symbol = cls(content['nodes'], content['heads'], content.get('attrs'))
            symbol._check()
        except UserError:
            raise
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            reason = error if type(error) in (ValueError, json.JSONDecodeError) else repr(error)
            raise UserError(
                f'{os.fspath(path)} holds no symbol of MXNet, or a damaged one ({reason}): give the PREFIX-symbol.json that was exported'
            ) from error
        try:
            require_different_names(node['name'] for node in symbol.nodes if node['op'] == VARIABLE)
            symbol._sort()
        except UserError as error:
            raise UserError(f'{os.fspath(path)}: {error}') from error
        return symbol

    @classmethod
    def read(cls, path):
        """`parse` the text of a file. Raises `UserError`, too, when it cannot be read."""
        return cls.parse(read_text(path), path)

    def _check(self):
        for node in self.nodes:
            if not isinstance(node['op'], str) or not isinstance(node['name'], str):
                raise ValueError(f'the operator {node["op"]!r} or the name {node["name"]!r} is no text')
            if not all(isinstance(text, str) for text in node['attrs'].values()):
                raise ValueError(f'node {node["name"]} has an attribute that is no text')
            if not all(_is_entry(source, len(self.nodes)) for source in node['inputs']):
                raise ValueError(f'node {node["name"]} reads a node that is not there')
        if not self.heads or not all(_is_entry(head, len(self.nodes)) for head in self.heads):
            raise ValueError('an output is no node')

    def _sort(self):
        """Put the nodes in topological order, as MXNet writes them. Raises `UserError` where there is none."""
        waiting_for = [len(node['inputs']) for node in self.nodes]
        readers = collections.defaultdict(list)
        for index, node in enumerate(self.nodes):
            for source, *_ in node['inputs']:
                readers[source].append(index)
        order = [index for index, count in enumerate(waiting_for) if not count]
        for index in order:
            for reader in readers[index]:
                waiting_for[reader] -= 1
                if not waiting_for[reader]:
                    order.append(reader)
        if any(waiting_for):
            raise UserError(f'node {self.nodes[_on_cycle(self.nodes, waiting_for)]["name"]} reads its own result: the symbol is damaged')
        if any(source >= index for index, node in enumerate(self.nodes) for source, *_ in node['inputs']):
            self._keep(order)

    def _keep(self, indices):
        """Leave these nodes, in this order; no other one is read by them or an output."""
        position = {old: new for new, old in enumerate(indices)}

        def moved(entries):
            return [[position[source], *rest] for source, *rest in entries]

        self.nodes = [{**self.nodes[index], 'inputs': moved(self.nodes[index]['inputs'])} for index in indices]
        self.heads = moved(self.heads)

    # --- editing --------------------------------------------------------------------------------------------------------------------

    def add(self, operator, name, inputs=(), attributes=None):
        """Append a node; return its position."""
        self.nodes.append({'op': operator, 'name': name, 'attrs': attributes or {}, 'inputs': list(inputs)})
        return len(self.nodes) - 1

    def replace(self, index, operator, inputs=(), attributes=None, name=None):
        """Put another node in the place of one, whose name it keeps unless it is given one."""
        name = name or self.nodes[index]['name']
        self.nodes[index] = {'op': operator, 'name': name, 'attrs': attributes or {}, 'inputs': list(inputs)}

    def splice(self, other, inputs):
        """Append the nodes of another symbol.

        Parameters
        ----------
        other : SymbolJson
        inputs : dict of str to list
            Names of its variables that become something else -> entries of this symbol, of the form of a node's inputs.

        Returns
        -------
        list of list
            The entries that the outputs of the other symbol are now.
        """
        entries = []
        for node in other.nodes:
            if node['op'] == VARIABLE and node['name'] in inputs:
                entries.append(inputs[node['name']])
            else:
                self.nodes.append({**node, 'inputs': [_entry(entries, source) for source in node['inputs']]})
                entries.append([len(self.nodes) - 1, 0, 0])
        return [_entry(entries, head) for head in other.heads]

    def drop_unused(self):
        """Remove the nodes that no output needs."""
        needed, waiting = set(), [index for index, *_ in self.heads]
        while waiting:
            index = waiting.pop()
            if index not in needed:
                needed.add(index)
                waiting.extend(source for source, *_ in self.nodes[index]['inputs'])
        self._keep(sorted(needed))

    def text(self, indent=None):
        """The text that MXNet loads."""
        content = {
            'nodes': [{key: value for key, value in node.items() if key != 'attrs' or value} for node in self.nodes],
            'arg_nodes': [index for index, node in enumerate(self.nodes) if node['op'] == VARIABLE],
            'heads': self.heads,
            'attrs': self.attributes,
        }
        return json.dumps(content, indent=indent)


def _entry(entries, source):
    """Where an input of a spliced node is now: an output of a node that was appended, or an entry that stands for a variable."""
    index, slot, *_ = source
    return entries[index] if slot == 0 else [entries[index][0], slot, 0]


def _is_entry(entry, count):
    index, slot = entry[:2]
    return type(index) is int and type(slot) is int and 0 <= index < count and 0 <= slot < _MOST_OUTPUTS  # True is an int, too


def _on_cycle(nodes, waiting_for):
    """A node of a cycle: go against the arrows, among nodes that wait, until one comes a second time."""
    index, seen = next(index for index, count in enumerate(waiting_for) if count), set()
    while index not in seen:
        seen.add(index)
        index = next(source for source, *_ in nodes[index]['inputs'] if waiting_for[source])
    return index


def require_different_names(variables):
    """Raise `UserError` where two variables have one name: parameters are found by their names."""
    for name, count in collections.Counter(variables).items():
        if count > 1:
            raise UserError(f'{count} variables of the symbol are called {name}: give each one a name of its own')


# --- attributes -------------------------------------------------------------------------------------------------------------------------

_TRUTHS = {'True': True, 'true': True, '1': True, 'False': False, 'false': False, '0': False}


def truth(text):
    """'True' or '1' -> True. Raises `ValueError` for a text that is no truth value."""
    if text not in _TRUTHS:
        raise ValueError(f'{text!r} is no truth value')
    return _TRUTHS[text]


def integers(text):
    """'(3, 3)' or '[3, 3]' -> (3, 3), '()' or '' -> (), '(None, 1)' -> (None, 1). Raises `ValueError` for other things than integers."""
    parts = (part.strip() for part in text.strip('()[] ').split(','))
    return tuple(None if part == 'None' else int(part) for part in parts if part)
