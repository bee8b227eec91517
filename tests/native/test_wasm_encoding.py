"""Final encoding of relaxed SIMD in modules of older compilers (tools/wasm_encoding.py)."""

import struct

import pytest
from support.native_program import ROOT  # noqa: F401  # its folder tools is in the path from here on
from wasm_encoding import FINAL, FORMER, in_final_encoding

from bmx_melius.errors import UserError

LOCALS = b'\x01\x03\x7b'  # one group: three vectors
GET, END = b'\x20\x00', b'\x0b'


def integer(value):
    """Return a number below 2^28 as LEB128."""
    return bytes([*(value >> shift & 0x7F | 0x80 for shift in (0, 7, 14)), value >> 21])


def section(number, content):
    return bytes([number]) + integer(len(content)) + content


def module(*bodies):
    """Return a module with a custom section and functions."""
    functions = b''.join(integer(len(LOCALS + body + END)) + LOCALS + body + END for body in bodies)
    parts = [section(0, b'\x01x' + FORMER), section(10, integer(len(bodies)) + functions), section(11, b'\x01\x00' + FORMER)]
    return b'\0asm\x01\0\0\0' + b''.join(parts)


@pytest.mark.parametrize(
    'before',
    [
        b'',
        b'\xfd\x00\x04\xfd\xaf\x01',  # v128.load at an offset
        b'\x41\xfd\xaf\x01\x1a',  # i32.const
        b'\x43\xfd\xaf\x01\x00',  # f32.const
        b'\x44' + struct.pack('<d', 0.5).replace(b'\0\0\0', FORMER, 1),
        b'\xfd\x0c' + (FORMER * 6)[:16],  # v128.const
        b'\xfd\x0d' + bytes(range(16)),  # i8x16.shuffle
        b'\xfd\x54\x00\xfd\xaf\x01\x03',  # v128.load8_lane
        b'\x0e\x01\xfd\xaf\x01\xfd\xaf\x01',  # br_table
        b'\x11\xfd\xaf\x01\x00\x10\xfd\xaf\x01\x1c\x01\x7f\xfc\x0a\x00\x00',  # calls, select with a type, memory.copy
        b'\xfd\xb1\x01\xfd\xae\x01\xfd\x84\x02',  # other instructions on vectors
    ],
)
def test_only_the_instruction_is_replaced(before):
    assert in_final_encoding(module(before + FORMER + before, GET + FORMER)) == module(before + FINAL + before, GET + FINAL)


def test_a_module_in_final_encoding_does_not_change():
    unknown = b'\0asm\x01\0\0\0' + section(10, b'\x01\x05\x00\xfe' + FINAL)
    for of_new_compiler in (module(FINAL, b''), unknown):
        assert in_final_encoding(of_new_compiler) == of_new_compiler


@pytest.mark.parametrize(
    'content, problem',
    [
        (b'\x7fELF' + FORMER, 'not a WebAssembly module'),
        (module(b'\xff'), 'the instruction ff'),
        (module(b'\xfe\x00\x02\x00'), 'the instruction fe0002'),
        (module(b'\xfd\xff\x02'), 'the instruction fdff02'),
        (module(b'\x44\x00'), 'cannot be decoded'),
        (b'\0asm\x01\0\0\0' + section(10, b'\x01\x05\x00' + FORMER), 'cut short'),
    ],
)
def test_what_cannot_be_decoded_is_refused(content, problem):
    with pytest.raises(UserError, match=problem):
        in_final_encoding(content)
