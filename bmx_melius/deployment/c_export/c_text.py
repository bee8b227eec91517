"""C text of constants and calls."""

import numpy as np

from .calls import Pointer
from .values import SIZES

WIDTH = 120
_MEMBERS = {'float': 'reals', 'int32_t': 'longs', 'int16_t': 'integers', 'uint8_t': 'bytes', 'uint32_t': 'words'}  # of the arena


def number_text(number):
    """Return a constant in C with exactly the value of a NumPy number."""
    if isinstance(number, np.floating):
        if np.isinf(number):
            return 'BMX_INFINITY' if number > 0 else '-BMX_INFINITY'
        digits, exponent = float(number).hex().split('p')
        digits = digits.rstrip('0') if '.' in digits else digits
        return f'{digits}{"0" if digits.endswith(".") else ""}p{exponent}f'
    return f'0x{number:0{2 * number.itemsize}x}' if isinstance(number, np.unsignedinteger) else str(number)


def array_text(constant):
    """Return the definition of an array of constants."""
    lines, line = [], '   '
    for item in map(number_text, constant.content.reshape(-1)):
        if len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = '   '
        line += f' {item},'
    return '\n'.join([f'static const {constant.type} {constant.name}[{constant.content.size}] = {{', *lines, line, '};'])


def structure_text(constant):
    """Return the definition of a structure of constants. A window is given by its members without a name."""
    fields = [
        content if field == 'window' and len(constant.content) == 1 else f'.{field} = {content}'
        for field, content in constant.content.items()
    ]
    return f'static const {constant.type} {constant.name} = {{{", ".join(fields)}}};'


def arena_text(arena, types):
    """Return the definition of the memory of a run, for elements of these C types; it is aligned for all of them."""
    size = max(arena.bytes, 4)
    members = [f'    {type} {name}[{size // SIZES[type]}];' for type, name in _MEMBERS.items() if type in types or type == 'uint32_t']
    return '\n'.join(['static union {', *members, '} arena;'])


def call_text(call, arena):
    """Return a call as a statement in a separate block: the stack space of a structure that it passes is free after its block."""
    arguments = [_pointer(argument, arena) if isinstance(argument, Pointer) else argument for argument in call.arguments]
    return f'    {{ {call.function}({", ".join(arguments)}); }}'


def _pointer(pointer, arena):
    buffer, first = pointer.buffer, pointer.first
    if buffer.external:
        return f'{buffer.name} + {first}' if first else buffer.name
    return f'&arena.{_MEMBERS[buffer.type]}[{arena.offset(buffer) // SIZES[buffer.type] + first}]'
