"""The kernels in C, ``kernels/*.c``, and the choice and order of the kernels that a network needs.

Each function or type of a file is a block between empty lines at the first column. A function whose name contains ``_value`` or
another word of `KINDS` is a template: it is written once for each combination of types with which it is called. A line before a function
that says how many bytes of code it has is not copied.
"""

import functools
import pathlib
import re

from .values import TYPES

FOLDER = pathlib.Path(__file__).resolve().parent / 'kernels'
FILES = ('types', 'binary', 'conv', 'elementwise', 'pooling', 'int8', 'sequences')  # each may use what the previous files define
KINDS = {  # of the types in the name of a template
    'value': tuple(TYPES),
    'signed': tuple(kind for kind in TYPES if kind != 'u8'),
    'result': tuple(TYPES),
    'weight': ('f32', 'f16', 'levels'),
    'filter': ('i8', 'codes', 'pairs1', 'pairs2', 'pairs3', 'pairs4'),
    'sum': ('i32', 'i64'),
    'form': ('split', 'wide'),  # of a rescaling
}
_TYPES = {**TYPES, 'f16': 'uint16_t', 'i64': 'int64_t', 'i8': 'int8_t', **dict.fromkeys(KINDS['filter'][1:], 'uint32_t')}

# Before functions that the network calls, and some that are better not inlined. A test compiles a network that GCC 12.2
# otherwise breaks, on x86-64 and on ARM.
_OPAQUE = """\
// GCC 12 with -O2 removes calls of functions that it has specialized for constant addresses: it computes one address of an
// array from another one, and takes the offset for a null pointer.
#if defined(__GNUC__) && !defined(__clang__)
#define BMX_OPAQUE __attribute__((noinline, noclone))
#else
#define BMX_OPAQUE
#endif
#if defined(__GNUC__)
#define BMX_INLINE inline __attribute__((always_inline))
#else
#define BMX_INLINE inline
#endif"""
_DEFINED = re.compile(r'^(?:(?:BMX_(?:OPAQUE|INLINE) )?static [^\n(]*?|\} )\b(bmx_\w+)(?=\(|;)', re.MULTILINE)
_USED = re.compile(r'\bbmx_\w+')
_BYTES = re.compile(r'^// code: (\d+) bytes\n', re.MULTILINE)


@functools.lru_cache(maxsize=None)
def _blocks():
    """Return the blocks of all files, in order: name -> (text, bytes of code or None)."""
    blocks = {}
    for name in FILES:
        for block in re.split(r'\n\n(?=\S)', (FOLDER / f'{name}.c').read_text(encoding='utf-8')):
            defined = _DEFINED.search(block)
            if defined:
                size = _BYTES.search(block)
                blocks[defined[1]] = _BYTES.sub('', block).strip('\n'), size and int(size[1])
    return blocks


def names():
    """Return the names of all functions and types."""
    return list(_blocks())


def function_bytes(name):
    """Return the bytes of a function that GCC 12.2 makes with -Os, of a template with the types that need most.

    The processor is a Cortex-M3, or a Cortex-M4 for what only that one has.

    `make test-mcu` compares their total with the total of a network. 0 for types.
    """
    return _blocks()[name][1] or 0


def instance(template, kinds):
    """Return the name of a function made of a template; `kinds` has one of its kinds for each word of `KINDS` in its name."""
    for word, kind in kinds.items():
        template = template.replace(f'_{word}', f'_{kind}')
    return template


class Kernels:
    """The functions and types that an exported network uses.

    Parameters
    ----------
    calls : list of (str, dict of str to str)
        Template and types of each call, as for `instance`.
    types : iterable of str
        Names of types that the network uses itself.

    Attributes
    ----------
    templates : dict of str to str
        Each function or type, and the block of a file that it is made of.
    """

    def __init__(self, calls, types=()):
        self._texts, self.templates = {}, {}
        for name in types:
            self._need(name, {})
        for template, kinds in calls:
            self._need(template, kinds)
        for name in {instance(template, kinds) for template, kinds in calls}:
            self._texts[name] = re.sub('^static void', 'BMX_OPAQUE static void', self._texts[name], flags=re.MULTILINE)

    def _need(self, template, kinds):
        name = instance(template, kinds)
        if name in self._texts:
            return
        text, _ = _blocks()[template]
        for word, kind in kinds.items():
            text = re.sub(rf'_{word}(?=[_(])', f'_{kind}', re.sub(rf'\b{word}_t\b', _TYPES.get(kind, ''), text))
        self._texts[name], self.templates[name] = text, template
        for used in set(_USED.findall(text)) & set(_blocks()):
            self._need(used, {})

    def text(self):
        """Return the functions and types as C, each after those on which it depends."""
        order = names()
        sorted_names = sorted(self._texts, key=lambda name: (order.index(self.templates[name]), name))
        return '\n\n'.join([_OPAQUE, *(self._texts[name] for name in sorted_names)])
