"""``bmx-melius export-c``: write a packed or exported network as C for microcontrollers."""

import contextlib
import os
import re
import tempfile

from ..arguments import positive_int
from ..errors import UserError
from ..files.io import check_folder, replacing, require_writable
from ..reporting import table
from .options import add_input_shapes, add_json_flag, exported_network, packed_prefix, print_json

_EXAMPLES = """\
examples:
  bmx-melius export-c out/packed firmware
  bmx-melius export-c out/packed firmware --name digits --max-ram 65536 --max-flash 262144

The files are NAME.c, NAME.h and NAME_weights.h. The code needs no library functions, no memory allocation and no operating system; its
results are bitwise identical to the engine's. Memory is planned now and printed: RAM is one static array and the stack, without the
inputs and outputs, which the caller provides; flash is the constants and an estimate of the code. docs/microcontrollers.md describes how
to call it and lists the supported operations.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'export-c',
        help='write a network as C for microcontrollers',
        epilog=_EXAMPLES,
        description='Write a packed or exported network as C99 for microcontrollers: source, header and weights.',
    )
    parser.add_argument(
        'prefix', metavar='PACKED', help='prefix of the files of a network, packed or not, or the name of one that ships with its weights'
    )
    parser.add_argument('folder', metavar='DIR', help='folder for the files; it is created if it does not exist')
    add_input_shapes(
        parser,
        'shape of the input, with a batch of 1; for several inputs, repeat the option with the name of each (default: as at conversion)',
    )
    parser.add_argument('--name', help='begins the names of files and functions (default: the last part of PACKED)')
    for memory, what in (('ram', 'values and stack'), ('flash', 'weights and code')):
        parser.add_argument(
            f'--max-{memory}',
            type=positive_int,
            metavar='BYTES',
            help=f'refuse a network that needs more bytes for {what}; nothing is written',
        )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Write the files and print their memory."""
    from ..deployment.c_export.c_files import check_name, to_c
    from ..deployment.runtime.packed_files import read_packed

    source = exported_network(arguments.prefix)
    source.require()
    name = arguments.name or re.sub(r'\W', '_', os.path.basename(source.prefix), flags=re.ASCII)
    check_name(name)
    check_folder(arguments.folder)
    with tempfile.TemporaryDirectory() as folder:
        packed = packed_prefix(source, arguments.input_shape, folder)
        program, _, input_names, output_order, borders = read_packed(packed)
    sizes = _sizes(arguments.input_shape, program, input_names, borders)
    network = to_c(program, output_order, name, sizes, source.description().input_spec())
    for memory, needed, limit in (('RAM', network.ram, arguments.max_ram), ('flash', network.flash, arguments.max_flash)):
        if limit is not None and needed > limit:
            raise UserError(
                f'{source.prefix} needs {needed:,} bytes of {memory}, {needed - limit:,} more than --max-{memory.lower()} {limit}'
            )
    os.makedirs(arguments.folder, exist_ok=True)
    paths = [os.path.join(arguments.folder, file) for file in network.files]
    for path in paths:
        require_writable(path)
    with contextlib.ExitStack() as stack:  # all are written before the first is renamed
        for path, text in zip(paths, network.files.values()):
            with open(stack.enter_context(replacing(path)), 'w', encoding='ascii') as file:
                file.write(text)
    if arguments.json:
        print_json(_facts(network, paths), output)
    else:
        print(_text(network, paths), file=output)


def _sizes(given, program, names, borders):
    """Return (height, width) of each input of the program for values of ``--input-shape``, None without any."""
    if not given:
        return None
    shapes = dict(given) if [name for name, _ in given] != [None] or len(names) > 1 else {names[0]: given[0][1]}
    if set(shapes) != set(names):
        raise UserError(f'give --input-shape NAME=1,C,H,W for each input of the network: {", ".join(names)}')
    sizes = []
    for number, (name, value) in enumerate(zip(names, program.inputs)):
        border, shape = borders.inputs.get(number), shapes[name]
        inside = border.in_program(shape, value.channels) if border else shape
        if inside is None or len(inside) != len(value.shape) + 1 or inside[:2] != (1, value.channels):
            expected = ', '.join(map(str, value.shape))
            raise UserError(
                f'input {name} cannot have the shape {shape}: the batch must be 1, and for one image it was ({expected}) at conversion'
            )
        sizes.append(inside[2:] or (1, 1))
    return sizes


def _facts(network, paths):
    return {
        'files': paths,
        'ram_bytes': network.ram,
        'arena_bytes': network.arena,
        'stack_bytes': network.stack,
        'arguments_bytes': network.arguments,
        'inputs': [{'name': one.name, 'type': one.type, 'elements': one.elements} for one in network.inputs],
        'outputs': [
            {'name': one.name, 'type': one.type, 'elements': one.elements, 'scale': float(one.scale), 'shift': float(one.shift)}
            for one in network.outputs
        ],
        'flash_bytes': network.flash,
        'weights_bytes': network.weights,
        'code_bytes': network.code,
        'layers': [
            {'value': one.number, 'operation': one.name, 'result': one.result, 'weights_bytes': one.weights} for one in network.layers
        ],
    }


def _text(network, paths):
    rows = [(one.number, one.name, one.result, one.weights) for one in network.layers if one.weights]
    arguments = ', '.join(f'{one.name} {one.type}[{one.elements}]' for one in [*network.inputs, *network.outputs])
    return (
        f'{", ".join(paths)}\n\n{table(("value", "operation", "result", "weights"), rows, align="><<>")}\n\n{arguments}\n'
        f'RAM    {network.ram:>9,} bytes: {network.arena:,} for values, {network.stack:,} of stack; '
        f'without {network.arguments:,} of inputs and outputs, which the caller provides\n'
        f'flash  {network.flash:>9,} bytes: {network.weights:,} of weights, about {network.code:,} of code'
    )
