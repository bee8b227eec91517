"""Mutations of inputs that keep checksums, lengths and syntax intact, so that fuzzers reach what lies behind the first check.

libFuzzer, Atheris and hypothesis change bytes or make values of a grammar; none of them repairs a checksum.

A mutator is a function (content, random, mutate_bytes) -> content. `mutate_bytes` is the mutation of bytes by the fuzzer, which records
what has been compared with the input, or `change_bytes`.
"""

import functools
import json
import re
import struct

import numpy as np

from bmx_melius.data.record_format import MAGIC as RECORD_MAGIC
from bmx_melius.deployment.program.packed_operator import STRUCTURE, text_of
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import HEADER_WORDS, MAGIC, VERSION, checksum_of
from bmx_melius.errors import UserError
from bmx_melius.training.saving.stored_checkpoints import _CHECKSUM, _checksum
from bmx_melius.vision.npy_header import NPY_START

_NUMBERS = (0, 1, -1, 2, 255, 256, 1 << 16, 1 << 20, (1 << 20) + 1, -(1 << 31), (1 << 31) - 1)
_VALUES = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**200,
    0.5,
    float('nan'),
    float('inf'),
    '',
    'data',
    '\ud800',
    '(1,',
    '1' * 5000,
    [],
    {},
    [[0, 0, 0]],
)
_DEEP = 100_000
_NPY_WORDS = (
    *(
        '',
        '0',
        '-1',
        '1L',
        '3',
        '16',
        'True',
        'None',
        '1e3',
        '1' * 40,
        str(2**31),
        str(2**63),
        '(' * 300,
        '[]',
        '{}',
        '\0',
        '\n',
        '\xff',
        '#',
    ),
    *("'|O'", "('<f4',)", "[('a', '<f4')]", "'f4,f4,(3,'", '<f3', '|u1', '<f8', '>f4', '<f2', '<i8', '|b1', '<U999999999', '|S0', '<M8[s]'),
)  # in the place of words of a header


# --- parts of an input ----------------------------------------------------------------------------------------------------------------


def join(parts):
    """Return one input for a fuzzer, the contents of several files: each part after its length, 4 bytes."""
    return b''.join(struct.pack('<I', len(part)) + part for part in parts)


def split(content, count):
    """Return `count` parts of an input that `join` made, or that a fuzzer has changed: missing bytes are left out."""
    parts, position = [], 0
    for _ in range(count):
        (length,) = struct.unpack('<I', content[position : position + 4].ljust(4, b'\0'))
        parts.append(content[position + 4 : position + 4 + length])
        position += 4 + length
    return parts


# --- mutators -------------------------------------------------------------------------------------------------------------------------


def change_bytes(content, random):
    """Change, insert or delete some bytes."""
    octets = bytearray(content)
    for _ in range(random.randint(1, 4)):
        position, kind = random.randrange(len(octets) + 1), random.random()
        if kind < 0.2:
            octets[position:position] = bytes(random.choice((0, 255, random.randrange(256))) for _ in range(random.randint(1, 8)))
        elif kind < 0.4:
            del octets[position : position + random.randint(1, 8)]
        elif position < len(octets):
            octets[position] = random.choice((0, 1, 127, 255, octets[position] ^ 1 << random.randrange(8)))
    return bytes(octets)


def mutate_octets(content, random, mutate_bytes):
    """Leave everything to the fuzzer."""
    return mutate_bytes(content, random)


def damaged(random, words):
    """Return a copy of a program, int32, with some words changed, mostly with the right checksum."""
    words = words.copy()
    for _ in range(random.randint(1, 3)):
        kind, position = random.random(), random.randrange(len(words))
        if random.random() < 0.5:
            position = min(position, random.randint(0, 40))
        if kind < 0.5:
            words[position] += random.choice((-1, 1, 2, -2))
        elif kind < 0.7:
            words[position] = random.choice(_NUMBERS)
        elif kind < 0.8:
            words[position] ^= np.int32(1 << random.randint(0, 30))
        elif kind < 0.9:
            words = np.delete(words, position)
        else:
            words = np.insert(words, position, random.randint(-3, 70))
        if not len(words):
            return words
    if len(words) > HEADER_WORDS and random.random() < 0.95:
        words[2] = len(words)
        words[3] = checksum_of(words[4:])
    return words


def mutate_program(content, random, mutate_bytes):
    """Change the words of a program or a structure, and repair its header."""
    if random.random() < 0.3:
        content = mutate_bytes(content, random)
    words = np.frombuffer(content[: len(content) // 4 * 4], '<i4').astype(np.int32)
    if len(words) <= HEADER_WORDS:
        return mutate_bytes(content, random)
    with np.errstate(over='ignore'):
        words = damaged(random, words)
    if len(words) > HEADER_WORDS:
        words[0], words[1] = MAGIC, VERSION
        words[3] = checksum_of(words[4:])
    return words.tobytes()


def mutate_structure(content, random, mutate_bytes):
    """Change the numbers of a text of a structure as words of a program, mostly with the right checksum, or its characters."""
    try:
        words = np.array(content.split(), dtype=np.int64).astype(np.int32)
    except (ValueError, OverflowError):
        return mutate_bytes(content, random)
    if random.random() < 0.3 or len(words) <= HEADER_WORDS:
        return mutate_bytes(content, random)
    with np.errstate(over='ignore'):
        changed = damaged(random, words)
    if len(changed) > HEADER_WORDS:
        changed[2] = words[2] + random.choice((0, 0, 0, 1))  # the length of the program
        changed[3] = checksum_of(changed[4:])
    return text_of(changed).encode()


def mutate_record(content, random, mutate_bytes):
    """Flip a bit in the header of a record: magic number, length and kind of frame, flag, label."""
    starts = [place for place in range(0, len(content) - 16, 4) if content[place : place + 4] == struct.pack('<I', RECORD_MAGIC)]
    if not starts:
        return mutate_bytes(content, random)
    octets, bit = bytearray(content), random.randrange(8 * 16)
    octets[random.choice(starts) + bit // 8] ^= 1 << bit % 8
    return bytes(octets)


def mutate_tar(content, random, mutate_bytes):
    """Change some bytes of a header of an archive and, mostly, repair its checksum; or cut or double some blocks."""
    octets, block = bytearray(content), 512
    headers = [place for place in range(0, len(content) - block + 1, block) if content[place + 257 :].startswith(b'ustar')]
    if not headers or random.random() < 0.2:
        return mutate_bytes(content, random)
    header = random.choice(headers)
    if random.random() < 0.2:
        end = header + block * random.randint(1, 4)
        return content[:header] + content[header:end] * random.choice((0, 2)) + content[end:]
    for _ in range(random.randint(1, 3)):
        begin, length = random.choice(((0, 100), (124, 12), (156, 1), (156, 1), (157, 100), (257, 8), (345, 155), (482, 1), (512, 100)))
        place = header + begin + random.randrange(length)
        if place < len(octets):
            octets[place] = random.choice((*b'\0 .=\n/0123456789LKxgSMVD', random.randrange(256)))
    if random.random() < 0.9:
        octets[header + 148 : header + 156] = b' ' * 8
        octets[header + 148 : header + 156] = b'%06o\0 ' % sum(octets[header : header + block])
    return bytes(octets)


def mutate_index(content, random, mutate_bytes):
    """Remove, repeat, swap or cut lines of an index, or change a digit."""
    lines, kind = content.splitlines(keepends=True), random.random()
    if not lines or kind < 0.2:
        return mutate_bytes(content, random)
    number = random.randrange(len(lines))
    if kind < 0.6:
        lines[number : number + 1] = [lines[number]] * random.choice((0, 2)) if kind < 0.4 else [lines[number][: random.randrange(8)]]
        return b''.join(lines)
    digits = [place for place, octet in enumerate(content) if octet in b'0123456789']
    octets = bytearray(content)
    for place in random.choices(digits, k=random.randint(1, 2)) if digits else ():
        octets[place] = random.choice(b'0123456789')
    return bytes(octets)


def mutate_npy(content, random, mutate_bytes):
    """Change some words in the header of an .npy file, and repair its length, or replace a number by one that is not finite."""
    end = 10 + int.from_bytes(content[8:10], 'little')
    if not content.startswith(NPY_START + b'\1') or end > len(content) or random.random() < 0.2:
        return mutate_bytes(content, random)
    header, numbers = content[10:end].decode('latin-1'), content[end:]
    if random.random() < 0.2:
        place = 4 * random.randrange(len(numbers) // 4 + 1)
        numbers = numbers[:place] + struct.pack('<f', random.choice((np.nan, np.inf, -np.inf))) + numbers[place + 4 :]
    else:
        for _ in range(random.randint(1, 3)):
            words = re.split(r'(\d+|\w+|[(){}\[\],:\'])', header)
            words[random.randrange(len(words))] = random.choice(_NPY_WORDS + tuple(words))
            header = ''.join(words)
    text = header.encode('latin-1')
    return content[:8] + struct.pack('<H', min(len(text), 0xFFFF)) + text + numbers


def mutate_json(content, random, mutate_bytes):
    """Replace, remove or repeat some values of a JSON text, or nest it deeply."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return mutate_bytes(content, random)
    if random.random() < 0.01:
        return b'[' * _DEEP + content + b']' * _DEEP
    for _ in range(random.randint(1, 3)):
        tree = _changed(tree, random)
    return json.dumps(tree).encode()


def mutate_checkpoint(content, random, mutate_bytes):
    """Change the description of a checkpoint, and repair its checksum."""
    content = mutate_json(content, random, mutate_bytes)
    try:
        state = json.loads(content)
        state.pop(_CHECKSUM, None)
        return json.dumps({**state, _CHECKSUM: _checksum(state)}).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return content


_INTEGERS = (0, 1, 2, 3, -1, 4, 6, 8, 17, 1 << 20, 1 << 31, (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 1e-45, 1e-30, 3e38, float('inf'), float('-inf'), float('nan'))


def mutate_onnx(content, random, mutate_bytes):
    """Change operators, attributes, wiring, constants and shapes of an ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return mutate_bytes(content, random)
    if not model.graph.node:
        return mutate_bytes(content, random)
    for _ in range(random.randint(1, 3)):
        _change_graph(onnx, model.graph, random)
    return model.SerializeToString()


def _change_graph(onnx, graph, random):
    kinds = _kinds(onnx)
    node, kind = random.choice(graph.node), random.random()
    names = [name for each in graph.node for name in (*each.input, *each.output)] + [tensor.name for tensor in graph.initializer] + ['']
    if kind < 0.15:
        node.op_type = random.choice(kinds)
    elif kind < 0.4:
        _change_attribute(onnx, node, random)
    elif kind < 0.55 and node.input:
        node.input[random.randrange(len(node.input))] = random.choice(names)
    elif kind < 0.6:
        node.input.append(random.choice(names)) if random.random() < 0.5 or not node.input else node.input.pop()
    elif kind < 0.75:  # another operator between this one and its readers
        output, added = node.output[0] if node.output else '', f'added{random.randrange(1 << 30)}'
        for reader in graph.node:
            for place, name in enumerate(reader.input):
                if name == output:
                    reader.input[place] = added
        inputs = [output, *(random.choice(names) for _ in range(random.randint(0, 2)))]
        graph.node.insert([*graph.node].index(node) + 1, onnx.helper.make_node(random.choice(kinds), inputs, [added]))
    elif kind < 0.93 and graph.initializer:
        _change_tensor(onnx, random.choice(graph.initializer), random)
    elif kind < 0.97 and graph.input:
        axes = random.choice(graph.input).type.tensor_type.shape.dim
        if axes:
            random.choice(axes).dim_value = random.choice(_INTEGERS)
    else:
        graph.node.remove(node)


@functools.lru_cache(maxsize=None)
def _kinds(onnx):
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ''})


def _change_attribute(onnx, node, random):
    names = sorted(onnx.defs.get_schema(node.op_type).attributes) if onnx.defs.has(node.op_type) else []
    if names and (not node.attribute or random.random() < 0.4):
        value = random.choice(
            (random.choice(_INTEGERS), random.choice(_FLOATS), [random.choice(_INTEGERS[:8]) for _ in range(random.randint(1, 8))])
        )
        node.attribute.append(onnx.helper.make_attribute(random.choice(names), value))
        return
    if not node.attribute:
        return
    attribute = random.choice(node.attribute)
    if attribute.ints:
        if random.random() < 0.3:
            attribute.ints.append(random.choice(_INTEGERS)) if random.random() < 0.5 else attribute.ints.pop()
        else:
            attribute.ints[random.randrange(len(attribute.ints))] = random.choice(_INTEGERS)
    elif attribute.HasField('i'):
        attribute.i = random.choice(_INTEGERS)
    elif attribute.HasField('f'):
        attribute.f = random.choice(_FLOATS)
    else:
        node.attribute.remove(attribute)


def _change_tensor(onnx, tensor, random):
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError, KeyError):
        return
    kind = random.random()
    if kind < 0.5 and array.size:
        values = _FLOATS if array.dtype.kind == 'f' else _INTEGERS if array.dtype == np.int64 else (0, 1)
        array.reshape(-1)[random.randrange(array.size)] = random.choice(values)
    elif kind < 0.7 and array.size:
        array = np.full_like(array, array.reshape(-1)[0] if random.random() < 0.7 else 0)
    elif kind < 0.85:
        array = array.reshape(random.choice(((1,) * random.randint(0, 4) + array.shape, (-1,), array.shape[::-1], (*array.shape, 1))))
    else:
        array = array.astype(random.choice((np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, bool)))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def mutate_symbol_of_program(parts, random, mutate_bytes):
    """Change the program in the second part, and write its structure into the symbol, the first part."""
    symbol, content = parts
    begin = content.find(struct.pack('<I', MAGIC))
    if begin < 20:
        return [symbol, mutate_bytes(content, random)]
    (count,) = struct.unpack_from('<q', content, begin - 20)
    end = begin + 4 * count
    if not 0 < count < len(content):
        return [symbol, mutate_bytes(content, random)]
    words = mutate_program(content[begin:end], random, change_bytes)
    words = words[: len(words) // 4 * 4]
    shape = struct.pack('<q', len(words) // 4)
    content = content[: begin - 20] + shape + content[begin - 12 : begin] + words + content[end:]
    try:
        _, structure = Program.with_structure(np.frombuffer(words, np.int32), decodes=False)
    except UserError:
        return [symbol, content]  # the symbol stays as it is: the two do not fit, which has to be an error as well
    return [_with_structure(symbol, text_of(structure)), content]


def _with_structure(symbol, structure):
    """Return the JSON text of a symbol whose packed operators have another structure; an invalid symbol unchanged."""
    try:
        tree = json.loads(symbol)
        for node in tree['nodes']:
            if STRUCTURE in node.get('attrs', {}):
                node['attrs'][STRUCTURE] = structure
        return json.dumps(tree).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return symbol


def _changed(tree, random):
    """Return a copy of a JSON value with a change somewhere in it."""
    if not isinstance(tree, (dict, list)) or not tree or random.random() < 0.1:
        return _replacement(tree, random)
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    key, copy = random.choice(keys), dict(tree) if isinstance(tree, dict) else list(tree)
    kind = random.random()
    if kind < 0.08:
        del copy[key]
    elif kind < 0.16 and isinstance(copy, list):
        copy.insert(key, copy[random.randrange(len(copy))])
    elif kind < 0.2 and isinstance(copy, dict):
        copy[random.choice(('op', 'name', 'attrs', 'inputs', 'param', 'subgraphs', key + 'x'))] = copy[key]
    else:
        copy[key] = _changed(copy[key], random)
    return copy


def _replacement(value, random):
    if isinstance(value, str) and random.random() < 0.6:
        return change_bytes(value.encode(errors='replace'), random).decode('latin-1')
    if isinstance(value, (int, float)) and random.random() < 0.6:
        return value + random.choice((-1, 1, 2))
    return random.choice(_VALUES)
