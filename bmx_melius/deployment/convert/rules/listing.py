"""Table of MXNet's operators: packed, kept in MXNet or refused. docs/operators.md has the text of `to_markdown`."""

from ....graph.mxnet_operators import READ_AS
from .table import MARKED_RULES, REASONS, RULES, TAKES_3D

_HEAD = """\
# Operators

This page lists how conversion treats the operators of MXNet. It is the output of `bmx-melius operators`.

- **packed**: the operator becomes operations of a program (`bmx_melius/deployment/program/operations.py`), under the conditions in the
  table. A node that does not meet them is kept in MXNet, and the report says why.
- **kept in MXNet**: the operator remains beside the packed operators, in the same symbol, and the report names node, operator and reason.
- Operators that are not listed are also kept in MXNet. A network without binary layers is packed completely or **refused**: the error names
  the first node that cannot be packed, and the reason. A `Session` and ONNX export require that everything is packed.
- **refused**, whatever the operator: parameters that are not finite or not float32, and `BatchNorm` whose variance + eps is not positive.

Maps are 1-D (N, C, W), 2-D (N, C, H, W) or 3-D (N, C, D, H, W), or are vectors (N, C), in float32, with the channels second. **3-D maps**
are packed with the operators below that say so. The packed operator then accepts one depth; convolutions and pooling over several depths
become one operation for each depth of the result (`bmx_melius/deployment/convert/rules/maps_3d.py`).
"""


def _text(function):
    """Return the first line of a rule's docstring as a sentence about the operator, in a cell of a table, and whether it takes 3-D maps."""
    text = ' '.join((function.__doc__ or '').strip().split('\n\n')[0].split()).replace('|', '\\|')
    return f'{text} Also in 3-D.' if text and function in TAKES_3D else text


def _by_rule(rules):
    """Return (names, text) for each rule, sorted by the first name."""
    names = {}
    for name, function in rules.items():
        names.setdefault(function, []).append(name)
    return sorted((sorted(group, key=str.lower), _text(function)) for function, group in names.items())


def rows():
    """Return the rows of the table: names of operators, ``packed`` or ``kept in MXNet``, and a text."""
    of_mxnet = {name: RULES[key] for name, keys in READ_AS.items() for key in keys if key in RULES}
    packed = [(names, 'packed', text) for names, text in _by_rule(of_mxnet)]
    kept = [([name], 'kept in MXNet', f'{reason[0].upper()}{reason[1:]}.') for name, reason in sorted(REASONS.items())]
    return sorted(packed + kept, key=lambda row: row[0][0].lower().lstrip('_'))


def to_markdown():
    """Return the document, without a line feed at the end."""
    lines = ['| operators of MXNet | | |', '|-|-|-|']
    lines += [f'| {", ".join(f"`{name}`" for name in names)} | {status} | {text} |' for names, status, text in rows()]
    lines += ['', 'Layers of bmx-melius mark their nodes (`bmx_melius/nn/marks.py`); rules of marks replace the rules of operators:', '']
    lines += ['| mark | |', '|-|-|']
    lines += [f'| {", ".join(f"`{name}`" for name in names)} | {text} |' for names, text in _by_rule(MARKED_RULES)]
    return _HEAD + '\n' + '\n'.join(lines)
