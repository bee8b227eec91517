"""Extension of griffe for the API reference: adapts the docstrings of this project to Markdown.

Docstrings mark formulas by ``::``, list terms with indented definitions, and name public objects in single backticks, as NumPy's do. A
paragraph after the parameters, which describes shapes, would be read as another parameter: it is moved before the sections.
"""

import pathlib
import re

from griffe import Extension

_API = pathlib.Path(__file__).resolve().parent.parent / 'docs' / 'api'
_SECTION = re.compile(r'^(?=[A-Z]\w+\n-{3,}$)', re.MULTILINE)
_GROUP = re.compile(r'^(\*{0,2}\w+(?:, \*{0,2}\w+)+)\n((?:    .*(?:\n|$))+?)(?=\S|\n|$)', re.MULTILINE)
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


def ungrouped(text, typed):
    """Return a docstring in which parameters with annotations that were described together are described one by one.

    Otherwise griffe gives all of them the type of the first one.
    """

    def replaced(match):
        names, description = match[1].split(', '), match[2]
        known = [name for name in names if name.lstrip('*') in typed]
        others = [name for name in names if name not in known]
        return '\n'.join(
            [f'{name}\n{description}' for name in known] + ([f'{", ".join(others)} : optional\n{description}'] if others else [])
        )

    return _GROUP.sub(replaced, text)


def annotated(function):
    """Return the names of the parameters of a function that have annotations."""
    return {parameter.name.lstrip('*') for parameter in function.parameters if parameter.annotation is not None}


class Docstrings(Extension):
    """Adapt every docstring when its object has been read."""

    def __init__(self):
        self.names = public_names()

    def on_instance(self, *, obj, **_):
        """Adapt the docstring of an object, which griffe has just created."""
        if obj.docstring:
            obj.docstring.value = adapted(obj.docstring.value, self.names)

    def on_function_instance(self, *, func, **_):
        """Separate the parameters of a function."""
        if func.docstring:
            func.docstring.value = ungrouped(func.docstring.value, annotated(func))

    def on_class_members(self, *, cls, **_):
        """Separate the parameters of a class, now that its methods are known."""
        if cls.docstring and '__init__' in cls.members:
            cls.docstring.value = ungrouped(cls.docstring.value, annotated(cls.members['__init__']))
