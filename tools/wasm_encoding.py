"""Final encoding of ``f32x4.relaxed_madd`` in modules of compilers that are older than it.

Relaxed SIMD was standardized with other opcodes than the compilers of 2022 write: Clang 14 and Emscripten 3.1.6 of
Debian 12 write ``f32x4.fma`` as 0xfd 0xaf 0x01, and engines read ``f32x4.relaxed_madd`` as 0xfd 0x85 0x02. No instruction has the former
opcode now. Both take three bytes and the same operands, so that one replaces the other in place. Bytes of constants and offsets can be the
same, so the instructions are decoded.
"""

from bmx_melius.errors import UserError

FORMER, FINAL = b'\xfd\xaf\x01', b'\xfd\x85\x02'
HEADER = b'\0asm\x01\0\0\0'
CODE_SECTION = 10
END = 0x0B


def _table(*rows):
    """Return the operands of instructions: a dictionary from rows (first number, last number, operands)."""
    return {number: operands for first, last, operands in rows for number in range(first, last + 1)}


# Operands of instructions: 'n' is an integer of variable length, 'v' a vector of them, preceded by their number, a digit that many bytes.
# Newer instructions (exceptions, references to functions, threads) are not listed: the module would be refused.
PLAIN = _table(
    *((0x00, 0x01, ''), (0x02, 0x04, 'n'), (0x05, 0x05, ''), (END, END, ''), (0x0C, 0x0D, 'n'), (0x0E, 0x0E, 'vn'), (0x0F, 0x0F, '')),
    *((0x10, 0x10, 'n'), (0x11, 0x11, 'nn'), (0x1A, 0x1B, ''), (0x1C, 0x1C, 'v'), (0x20, 0x26, 'n'), (0x28, 0x3E, 'nn'), (0x3F, 0x42, 'n')),
    *((0x43, 0x43, '4'), (0x44, 0x44, '8'), (0x45, 0xC4, '')),
)
PREFIXED = {
    0xFC: _table(
        (0, 7, ''), (8, 8, 'nn'), (9, 9, 'n'), (10, 10, 'nn'), (11, 11, 'n'), (12, 12, 'nn'), (13, 13, 'n'), (14, 14, 'nn'), (15, 17, 'n')
    ),
    0xFD: _table((0, 11, 'nn'), (12, 13, '88'), (14, 20, ''), (21, 34, '1'), (35, 83, ''), (84, 91, 'nn1'), (92, 93, 'nn'), (94, 275, '')),
}


def in_final_encoding(module: bytes) -> bytes:
    """Return a module in which `FORMER` is replaced by `FINAL`. Raises `UserError` if it cannot be decoded."""
    if FORMER not in module:  # of a newer compiler, which may use instructions that are not listed here
        return module
    if module[: len(HEADER)] != HEADER:
        raise UserError('the file is not a WebAssembly module')
    try:
        return _replaced(module)
    except IndexError as error:
        raise UserError('the module is cut short') from error


def _replaced(module):
    result, at = bytearray(module), len(HEADER)
    while at < len(module):
        section = module[at]
        size, at = _integer(module, at + 1)
        if section == CODE_SECTION:
            for place in _instructions_of_section(module, at):
                if module.startswith(FORMER, place):
                    result[place : place + len(FINAL)] = FINAL
        at += size
    return bytes(result)


def _instructions_of_section(module, at):
    """Yield the places of all instructions of the code section whose content begins at `at`."""
    functions, at = _integer(module, at)
    for _ in range(functions):
        size, at = _integer(module, at)
        end = at + size
        groups, at = _integer(module, at)
        for _ in range(groups):  # of local variables: their number and type
            at = _after(module, at, 'n1')
        while at < end:
            yield at
            last, at = module[at], _after_instruction(module, at)
        if at != end or last != END:
            raise UserError(f'the function of the module that ends at byte {end} cannot be decoded')


def _after_instruction(module, at):
    number, table, after = module[at], PLAIN, at + 1
    if number in PREFIXED:
        table = PREFIXED[number]
        number, after = _integer(module, after)
    if number not in table:
        raise UserError(f'the instruction {module[at : at + 3].hex()} at byte {at} of the module is not known')
    return _after(module, after, table[number])


def _after(module, at, operands):
    for operand in operands:
        if operand == 'n':
            _, at = _integer(module, at)
        elif operand == 'v':
            count, at = _integer(module, at)
            at = _after(module, at, 'n' * count)
        else:
            at += int(operand)
    return at


def _integer(module, at):
    """Return an unsigned integer of variable length (LEB128) and the place after it; of signed integers only the latter is right."""
    value = shift = 0
    while True:
        byte = module[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
