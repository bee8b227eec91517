"""Extension of griffe for the API reference: adapts the docstrings of this project to Markdown.

Docstrings mark formulas by ``::``, list terms with indented definitions, and name public objects in single backticks, as NumPy's do. A
paragraph after the parameters, which describes shapes, would be read as another parameter: it is moved before the sections.
"""

import pathlib
import re

from griffe import Extension

_API = pathlib.Path(__file__).resolve().parent.parent / 'docs' / 'api'
_SECTION = re.compile(r'^(?=[A-Z]\w+\n-{3,}$)', re.MULTILINE)
_DEFINITION = re.compile(r'^(``.*)\n {4}', re.MULTILINE)
_REFERENCE = re.compile(r'(?<!`)`([A-Za-z_][\w.]*)`(?!`)')


def public_names():
    """Return the names with an entry in the API reference: last part of the name, and the whole name, -> whole name."""
    names = re.findall(r'^::: (\S+)$', '\n'.join(path.read_text(encoding='utf-8') for path in _API.glob('*.md')), re.MULTILINE)
    return {**{name.rpartition('.')[2]: name for name in names}, **{name: name for name in names}}


def adapted(text, names):
    """Return a docstring in the form that griffe and Markdown expect."""
    summary, *sections = _SECTION.split(text)
    for number, section in enumerate(sections):
        if section.startswith(('Parameters\n', 'Attributes\n')):
            kept, notes = [], []
            for paragraph in section.rstrip().split('\n\n'):
                is_note = kept and re.match(r'[A-Z][a-z]+ .*[;,.]', paragraph) and '\n    ' not in paragraph
                (notes if is_note else kept).append(paragraph)
            sections[number] = '\n\n'.join(kept) + '\n\n'
            summary = '\n\n'.join([summary.rstrip(), *notes]) + '\n\n'
    summary = _DEFINITION.sub(r'\n\1\n:   ', summary)
    text = re.sub(r'::(\n+ )', r':\1', ''.join([summary, *sections]))
    return _REFERENCE.sub(lambda match: f'[`{match[1]}`][{names[match[1]]}]' if match[1] in names else match[0], text)


class Docstrings(Extension):
    """Adapt every docstring when its object is read."""

    def __init__(self):
        self.names = public_names()

    def on_instance(self, *, obj, **_):
        """Adapt the docstring of an object, which griffe has just created."""
        if obj.docstring:
            obj.docstring.value = adapted(obj.docstring.value, self.names)
