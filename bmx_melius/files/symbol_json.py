"""Parser, checks and editing of symbols in the JSON format of ``-symbol.json`` files: a list of nodes that refer to inputs by position.

MXNet also loads symbols that contain a cycle or two variables of one name, but cannot run them correctly. Files are therefore checked here
before MXNet loads them. Nothing here needs MXNet. The attributes of nodes are text; the functions at the end parse their values.
"""

import collections
import json
import os
import re

from ..errors import UserError, is_printable
from .io import read_text

VARIABLE = 'null'  # the operator of variables
# Operators with attributes that are addresses: MXNet calls what is there, so a file with them could execute any code. MXNet creates them
# while it runs; exported networks do not have them.
_WITH_ADDRESSES = re.compile(r'_backward_.*|_Native|_NDArray|_CustomFunction|_CachedOp.*')
MAX_BYTES = 1 << 26  # of a JSON text; exported networks have less than 1 % of it. Parsing takes some 20 times as much memory
_MAX_OUTPUTS = 1 << 12  # per node; more than any node has. MXNet does not check output numbers


class SymbolJson:
    """The nodes and outputs of a symbol.

    Attributes
    ----------
    nodes : list of dict
        In topological order: ``op`` (`VARIABLE` for an input or a parameter), ``name``, ``attrs``, a dict of str to str, and ``inputs``. An
        input is a list that begins with the position of a node and the number of one of its outputs.
    heads : list of list
        The outputs of the symbol, in the same form as inputs.
    attributes : dict
        Attributes of the whole symbol, such as MXNet's version.
    """

    def __init__(self, nodes=(), heads=(), attributes=None):
        self.nodes = [{**node, 'attrs': node.get('attrs', {})} for node in nodes]
        self.heads, self.attributes = list(heads), attributes or {}

    @classmethod
    def of(cls, symbol):
        """Return the `SymbolJson` of an `mxnet.sym.Symbol`."""
        return cls.loads(symbol.tojson())

    @classmethod
    def loads(cls, text):
        """Return the `SymbolJson` of a JSON text that MXNet has written. Texts of others need `parse`."""
        content = json.loads(text)
        return cls(content['nodes'], content['heads'], content.get('attrs'))

    @classmethod
    def parse(cls, text, path):
        """Parse a JSON text and check what MXNet does not check; `path` is its name in error messages.

        Raises
        ------
        UserError
            If the text is longer than `MAX_BYTES`, is not a symbol, contains a cycle or a graph within a node, has two variables of one
            name, or an operator that could execute code.
        """
        if len(text) > MAX_BYTES:
            raise UserError(f'{os.fspath(path)} has {len(text)} bytes; at most {MAX_BYTES} are possible for a symbol')
        try:
            symbol = cls.loads(text)
            symbol._check()
            _refuse_addresses(symbol.nodes, os.fspath(path))
        except UserError:
            raise
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            reason = error if type(error) in (ValueError, json.JSONDecodeError) else repr(error)
            raise UserError(
                f'{os.fspath(path)} holds no symbol of MXNet, or a damaged one ({reason}): give an exported PREFIX-symbol.json'
            ) from error
        try:
            require_different_names(node['name'] for node in symbol.nodes if node['op'] == VARIABLE)
            symbol.sort()
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
            if not is_printable(node['op'] + node['name']):
                raise ValueError(f'the operator {ascii(node["op"])} or the name {ascii(node["name"])} has control characters')
            if not all(isinstance(text, str) for text in node['attrs'].values()):
                raise ValueError(f'node {node["name"]} has an attribute that is not a string')
            if not all(_is_entry(source, len(self.nodes)) for source in node['inputs']):
                raise ValueError(f'node {node["name"]} reads a node that does not exist')
        if not self.heads or not all(_is_entry(head, len(self.nodes)) for head in self.heads):
            raise ValueError('an output is not a node')

    def sort(self):
        """Sort the nodes topologically, as MXNet writes them. Raises `UserError` if the symbol contains a cycle."""
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
        """Keep only these nodes, in this order. They and the outputs must not refer to others."""
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
        """Replace a node at its position. The new node keeps the name unless `name` is given."""
        name = name or self.nodes[index]['name']
        self.nodes[index] = {'op': operator, 'name': name, 'attrs': attributes or {}, 'inputs': list(inputs)}

    def splice(self, other, inputs):
        """Append the nodes of another symbol.

        Parameters
        ----------
        other : SymbolJson
        inputs : dict of str to list
            Names of variables of `other` -> entries of this symbol that replace them, in the form of a node's inputs.

        Returns
        -------
        list of list
            Entries of this symbol for the outputs of `other`.
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
        """Remove the nodes on which no output depends."""
        needed, waiting = set(), [index for index, *_ in self.heads]
        while waiting:
            index = waiting.pop()
            if index not in needed:
                needed.add(index)
                waiting.extend(source for source, *_ in self.nodes[index]['inputs'])
        self._keep(sorted(needed))

    def text(self, indent=None):
        """Return the JSON text, which MXNet can load."""
        content = {
            'nodes': [{key: value for key, value in node.items() if key != 'attrs' or value} for node in self.nodes],
            'arg_nodes': [index for index, node in enumerate(self.nodes) if node['op'] == VARIABLE],
            'heads': self.heads,
            'attrs': self.attributes,
        }
        return json.dumps(content, indent=indent)


def _refuse_addresses(nodes, path):
    """Raise `UserError` if a node is an operator with addresses, or contains a graph, which MXNet does not check either."""
    for node in nodes:
        if _WITH_ADDRESSES.fullmatch(node['op']):
            raise UserError(
                f'{path} is refused: MXNet executes what the attributes of {node["op"]} (node {node["name"]}) point to, and exported '
                'networks do not have this operator'
            )
        if 'subgraphs' in node:
            raise UserError(
                f'{path}: node {node["name"]} ({node["op"]}) contains a subgraph (a loop or a fused operator), which is not supported'
            )


def _entry(entries, source):
    """Return the new entry of an input of a spliced node: an output of an appended node, or the replacement of a variable."""
    index, slot, *_ = source
    return entries[index] if slot == 0 else [entries[index][0], slot, 0]


def _is_entry(entry, count):
    index, slot = entry[:2]
    return (
        type(index) is int and type(slot) is int and 0 <= index < count and 0 <= slot < _MAX_OUTPUTS
    )  # `type`, because True is an instance of int


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


# --- attributes -------------------------------------------------------------------------------------------------------------------------

_TRUTHS = {'True': True, 'true': True, '1': True, 'False': False, 'false': False, '0': False}


def truth(text):
    """Parse a truth value: 'True' or '1' -> True. Raises `ValueError` for other text."""
    if text not in _TRUTHS:
        raise ValueError(f'{text!r} is not a truth value')
    return _TRUTHS[text]


def integers(text):
    """Parse integers: '(3, 3)' or '[3, 3]' -> (3, 3), '()' or '' -> (), '(None, 1)' -> (None, 1). Raises `ValueError` for other text."""
    parts = (part.strip() for part in text.strip('()[] ').split(','))
    return tuple(None if part == 'None' else int(part) for part in parts if part)
