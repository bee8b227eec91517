"""Write what is made from the table of operations: the header of the engine in C++ and the tables of the documentation.

The header is tracked by git because CMake builds the engine without Python.

`make operations` runs it; tests/deployment/program/test_operation_table.py says when its results are stale.
"""

import collections
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bmx_melius.deployment.program import limits, operation_table, words  # noqa: E402
from bmx_melius.deployment.program.operation_table import BITS_KIND, OPERATIONS, REAL_KIND  # noqa: E402
from bmx_melius.deployment.program.operations import SHAPES, SIZE_TERMS  # noqa: E402
from bmx_melius.files.io import replacing  # noqa: E402

HEADER = ROOT / 'bmx_melius' / 'csrc' / 'program' / 'operation_table.h'
PAGE = ROOT / 'docs' / 'internals' / 'packed-format.md'
BEGIN, END = '<!-- made by `make operations` from the table of operations: begin -->\n', '<!-- end -->\n'
WIDTH = 120  # of a line of C++

# --- C++ --------------------------------------------------------------------------------------------------------------------------------


def _constants():
    """Return the limits, the constants of the format, and the facts of the planner as constants of C++."""
    found = {**vars(limits), **vars(words), **vars(operation_table)}
    public = {name: value for name, value in found.items() if name.isupper() and not name.startswith('_') and not name.endswith('_KIND')}
    return [_constant(name, value) for name, value in public.items() if isinstance(value, (int, str))]


def _constant(name, value):
    constant = 'k' + name.title().replace('_', '')
    if isinstance(value, str):
        return f'constexpr const char* {constant} = "{value}";'
    narrow = limits.NARROW.get(name)
    if narrow is not None:
        return f'constexpr int64_t {constant} = kWide ? {value} : {narrow};'
    return f'constexpr {"int" if value < 1 << 31 else "int64_t"} {constant} = {value};'


def _wrapped(prefix, items, suffix):
    """Return a braced list on one line, or on several if it is too long."""
    line = f'{prefix}{{{", ".join(items)}}}{suffix}'
    return line if len(line) <= WIDTH else ''.join([f'{prefix}{{\n', *(f'    {item},\n' for item in items), f'}}{suffix}'])


def _enumeration(name, members):
    return _wrapped(f'enum class {name} ', members, ';')


def _all_attributes():
    """Return the attributes of all operations with their limits, which operations may have in common: (name, limits) -> constant."""
    found, counts = {}, collections.Counter()
    for row in OPERATIONS.values():
        for attribute in row.attributes.items():
            if attribute not in found:
                name = attribute[0]
                counts[name] += 1
                found[attribute] = f'k{_camel(name)}' + (str(counts[name]) if counts[name] > 1 else '')
    return found


def _camel(name):
    return ''.join(part.title() for part in name.split('_'))


def _attribute(constant, name, low, high):
    return f'inline constexpr AttributeRow {constant} = {{"{name}", &AttributeValues::{name}, {low}, {high}}};'


def _attributes(name, row, constants):
    listed = ', '.join(constants[attribute] for attribute in row.attributes.items())
    text = f'inline constexpr AttributeRow k{_camel(name)}Attributes[] = {{{listed}}};'
    return textwrap.fill(text, WIDTH, subsequent_indent='    ')


def _row(name, row):
    attributes = f'{{attributes::k{_camel(name)}Attributes, {len(row.attributes)}}}' if row.attributes else '{nullptr, 0}'
    fields = [
        f'"{name}"',
        *map(str, row.inputs),
        *('true' if kind in row.kinds else 'false' for kind in (REAL_KIND, BITS_KIND)),
        f'Result::{row.result or "same"}',
        f'ShapeRule::{row.shape}_shape',
        f'ElementwiseForm::{row.elementwise or "none"}',
        f'Elementwise::{name if row.elementwise == "channels" else "none"}',
        f'Combination::{(row.like or name) if row.elementwise in ("values", "positions") else "copy"}',
        f'ViewKind::{row.view or "none"}',
        f'Products::{row.products or "none"}',
        str(row.weight_levels).lower(),
        f'RangeRule::{row.range or "none"}',
        attributes,
    ]
    return f'    {{{", ".join(fields)}}},'


def _size(text):
    """Return a size of an array as an expression in C++."""
    terms, _, flag = text.partition(' if ')
    product = ' '.join(filter(None, (one for term in SIZE_TERMS.findall(terms) for one in (term[0], _size_term(*term[1:])))))
    return f'a.{flag} ? {product} : 1' if flag else product


def _size_term(power, name):
    term = 'channels' if name == 'C' else name if name.isdigit() else f'a.{name}'
    return f'(1 << {term})' if power else term


def _array_type(text):
    name, _, flag = text.partition(' if ')
    return f'a.{flag} ? ArrayType::{name} : ArrayType::float32' if flag else f'ArrayType::{name}'


def _arrays(name, row):
    lines = [f'        case Op::{name}:']
    for array, facts in row.arrays.items():
        sizes = ', '.join(map(_size, facts.shape))
        call = f'visit({{"{array}", {_array_type(facts.dtype)}, {len(facts.shape)}, {{{sizes}}}, {str(facts.ordered).lower()}}});'
        lines.append(f'            {f"if (a.{facts.exists}) " if facts.exists else ""}{call}')
    return '\n'.join([*lines, '            break;', ''])


def header():
    """Return the text of the header for C++."""
    elementwise = [name for name, row in OPERATIONS.items() if row.elementwise == 'channels']
    combinations = [name for name, row in OPERATIONS.items() if row.elementwise == 'values']
    codes = [row.opcode for row in OPERATIONS.values()]
    rows = [str(codes.index(code) if code in codes else -1) for code in range(max(codes) + 1)]
    attributes = _all_attributes()
    defaults = {}
    for name, (low, _) in attributes:
        defaults.setdefault(name, max(low, 0))
    members = ''.join(f'    int {name} = {default};\n' for name, default in defaults.items())
    names = ', '.join(f'Op::{name}' for name in operation_table.EPILOGUE)
    shapes = [f'{name}_shape' for name in SHAPES]
    max_arrays = max(len(row.arrays) for row in OPERATIONS.values())
    nl = '\n'
    return f"""\
// The table of operations and the limits of programs. `make operations` writes this file from operation_table.py,
// limits.py and words.py of deployment/program, which document what is here: do not edit it.
#pragma once
#include <cstddef>
#include <cstdint>

// clang-format off
namespace bmx {{

constexpr bool kWide = sizeof(size_t) >= 8;  // false in WebAssembly, whose addresses have 32 bits

{nl.join(_constants())}
constexpr int kMaxArrays = {max_arrays};  // of an operation

{_enumeration('Op', [f'{name} = {row.opcode}' for name, row in OPERATIONS.items()])}

{_enumeration('ShapeRule', shapes)}

// What an elementwise operation combines an element with: constants of its channel, another value, constants of its position.
enum class ElementwiseForm {{none, channels, values, positions}};

// Operations on an element and constants of its channel.
{_enumeration('Elementwise', ['none', *elementwise])}

// Operations on an element and another one; copy is the other one.
{_enumeration('Combination', ['copy', *combinations])}

// What the result of an operation that computes nothing consists of: channels of its inputs, all elements in another shape.
enum class ViewKind {{none, channels, shape}};

// What an operation multiplies by weights, so how its multiplications are counted.
enum class Products {{none, floats, binary, int8}};

// The range of results that are integers: of the bits 0 or `low` and 1, of sums of signs, the limits that attributes
// give, 0 to the number of thresholds, the sum of the ranges of the inputs, what these cover together. None if the
// results are real numbers.
enum class RangeRule {{none, bits, sums, limits, counts, total, merged}};

inline constexpr Op kEpilogueOperations[] = {{{names}}};

// Attributes of an operation. Those that it does not have are neutral.
struct AttributeValues {{
{members}}};

struct AttributeRow {{
    const char* name;
    int AttributeValues::* member;
    int low, high;
}};

struct AttributeRows {{
    const AttributeRow* rows;
    size_t count;

    const AttributeRow* begin() const {{ return rows; }}
    const AttributeRow* end() const {{ return rows + count; }}
    size_t size() const {{ return count; }}
}};

enum class Result {{real, bits, same}};

struct OperationRow {{
    const char* name;
    int min_inputs, max_inputs;
    bool takes_real, takes_bits;
    Result result;
    ShapeRule shape;
    ElementwiseForm form;
    Elementwise elementwise;
    Combination combination;
    ViewKind view;
    Products products;
    bool weight_levels;  // whether its weights are stored as the numbers of their levels
    RangeRule range;
    AttributeRows attributes;  // in the order of the file
}};

// Attributes with their limits, and the attributes of each operation.
namespace attributes {{
{nl.join(_attribute(constant, name, *allowed) for (name, allowed), constant in attributes.items())}

{nl.join(_attributes(name, row, attributes) for name, row in OPERATIONS.items() if row.attributes)}
}}  // namespace attributes

inline constexpr OperationRow kOperations[] = {{
{nl.join(_row(name, row) for name, row in OPERATIONS.items())}
}};

// The row of each opcode, -1 for numbers that no operation has.
{textwrap.fill(f'inline constexpr signed char kRowOfOpcode[] = {{{", ".join(rows)}}};', WIDTH, subsequent_indent='    ')}
constexpr int kMaxOpcode = {max(codes)};

constexpr bool is_opcode(int32_t code) {{ return code >= 0 && code <= kMaxOpcode && kRowOfOpcode[code] >= 0; }}
constexpr const OperationRow& row_of(Op op) {{ return kOperations[kRowOfOpcode[static_cast<size_t>(op)]]; }}
constexpr const char* name_of(Op op) {{ return row_of(op).name; }}

enum class ArrayType {{float32, float16, int32, int8, bits}};

struct ArrayRow {{
    const char* name;
    ArrayType type;
    int rank;
    int64_t sizes[4];
    bool ordered;  // compared with elements, so that it must not contain NaN
}};

// Calls `visit` with each array of an operation with `channels` input channels, in the order of the file.
template <class Visit>
void visit_arrays(Op op, const AttributeValues& a, int64_t channels, const Visit& visit) {{
    switch (op) {{
{''.join(_arrays(name, row) for name, row in OPERATIONS.items() if row.arrays)}        default:
            break;
    }}
}}

}}  // namespace bmx
// clang-format on
"""


# --- documentation ----------------------------------------------------------------------------------------------------------------------


def _range_text(low, high):
    return str(low) if low == high else f'{low} to {high}'


def _array_text(name, array):
    conditions = [f'if `{array.exists}`'] if array.exists else []
    dtype, _, flag = array.dtype.partition(' if ')
    sizes = ', '.join(f'({size}, else 1)' if ' if ' in size else size for size in array.shape)
    text = f'`{name}` ({sizes}{"," if len(array.shape) == 1 else ""}) {dtype}'
    text += f' if `{flag}`, else float32' if flag else ''
    return ' '.join([text, *conditions]) + (', not NaN' if array.ordered else '')


def page_tables():
    """Return the tables of the documentation, in Markdown."""
    lines = [
        '| opcode | operation | since | inputs | kind, result | attributes, one word each, in this order | arrays, in this order |',
        '|-|-|-|-|-|-|-|',
    ]
    for name, row in OPERATIONS.items():
        attributes = ', '.join(f'`{attribute}` {_range_text(*limits)}' for attribute, limits in row.attributes.items())
        arrays = '; '.join(_array_text(array, facts) for array, facts in row.arrays.items())
        kinds = f'{" or ".join(row.kinds)}, {row.result or "the same"}'
        lines.append(f'| {row.opcode} | `{name}` | {row.since} | {_range_text(*row.inputs)} | {kinds} | {attributes} | {arrays} |')
    lines += ['', '| operation | meaning |', '|-|-|']
    lines += [f'| `{name}` | {row.doc} |' for name, row in OPERATIONS.items()]
    return '\n'.join([*lines, ''])


def page():
    """Return the text of the page with the tables."""
    before, rest = PAGE.read_text(encoding='utf-8').split(BEGIN)
    return before + BEGIN + '\n' + page_tables() + '\n' + END + rest.split(END, 1)[1]


FILES = {HEADER: header, PAGE: page}


def main():
    """Write the files."""
    for path, text in FILES.items():
        with replacing(str(path)) as temporary:
            pathlib.Path(temporary).write_text(text(), encoding='utf-8')


if __name__ == '__main__':
    main()
