"""Reader of the files of packed networks that does not need MXNet."""

import dataclasses

from ...errors import UserError
from ...files.exported import Exported
from ...files.parameters import read_parameters
from ...files.symbol_json import VARIABLE, SymbolJson
from ..program.borders import read_border
from ..program.packed_operator import NAME, STRUCTURE, text_of
from ..program.program import Program


@dataclasses.dataclass(frozen=True)
class Borders:
    """The inputs and outputs of a network whose shape differs from the program's: dicts from their numbers to a `Border`."""

    inputs: dict = dataclasses.field(default_factory=dict)
    outputs: dict = dataclasses.field(default_factory=dict)


def read_packed(prefix, decodes=True):
    """Read a packed network.

    Parameters
    ----------
    prefix : str or os.PathLike
        See `Session`. What an `Exported` has read is not read again.
    decodes : bool
        Whether to decode and check the elements of arrays. The engine does so itself.

    Returns
    -------
    program : bmx_melius.deployment.program.program.Program
        Without arrays unless `decodes`.
    words : numpy.ndarray
        The stored program, int32.
    input_names : list of str
    output_order : list of int
        The number of the program output for each output of the network.
    borders : Borders

    Raises
    ------
    UserError
        If the files are missing or do not hold a packed network; the message names the file.
    """
    files = Exported.of(prefix)
    symbol_file, params_file = files.symbol_file, files.parameter_file(0)
    input_names, words_name, structure, output_order, borders = _read_symbol(files)
    words = _read_words(params_file, words_name)
    try:
        program, found = Program.with_structure(words, decodes)
    except UserError as error:
        raise UserError(f'{params_file}: {error}') from error
    inputs_fit, outputs_fit = len(program.inputs) == len(input_names), max(output_order) < len(program.outputs)
    if structure != text_of(found) or not inputs_fit or not outputs_fit:
        raise UserError(f'{symbol_file} and {params_file} are not from the same conversion: convert the network again')
    return program, words, input_names, output_order, borders


def runs_without_mxnet(prefix):
    """Return whether the symbol of files with this prefix is one packed operator, so that a `Session` can run them."""
    files = Exported.of(prefix)
    symbol = SymbolJson.parse(files.symbol_text, files.symbol_file)
    _, operators = _operators(symbol)
    return [node['op'] for node in operators] == [NAME]


def _read_symbol(files):
    """Return the names of the inputs and the words, the structure, the operator output for each network output, and `Borders`."""
    path = files.symbol_file
    symbol = SymbolJson.parse(files.symbol_text, path)
    borders, operators = _operators(symbol)
    packed = [node for node in operators if node['op'] == NAME]
    foreign = sorted({node['op'] for node in operators if node['op'] != NAME})
    if foreign:
        beside = f' beside {"a packed operator" if len(packed) == 1 else f"{len(packed)} packed operators"}' if packed else ''
        raise UserError(
            f'{path} has operators of MXNet{beside} ({", ".join(foreign)}): load it with MXNet,'
            + (' SymbolBlock.imports' if packed else f' or convert it first: {files.packing_command}')
        )
    if len(packed) != 1:
        raise UserError(f'{path} has {len(packed)} packed operators; a session runs one: load it with MXNet, SymbolBlock.imports')
    if not all(symbol.nodes[source] is packed[0] for source, *_ in symbol.heads):
        raise UserError(f'{path} has outputs that its packed operator does not compute: load it with MXNet')
    *inputs, words = [symbol.nodes[source]['name'] for source, *_ in packed[0]['inputs']] or ['']
    return inputs, words, packed[0]['attrs'].get(STRUCTURE), [slot for _, slot, *_ in symbol.heads], borders


def _operators(symbol):
    """Return `Borders` and the nodes of operators that remain after `_bypass_borders`."""
    borders, bypassed = _bypass_borders(symbol)
    return borders, [node for position, node in enumerate(symbol.nodes) if node['op'] != VARIABLE and position not in bypassed]


def _bypass_borders(symbol):
    """Bypass the nodes with which conversion changes the shapes of inputs and outputs (`borders`).

    Returns
    -------
    borders : Borders
    bypassed : set of int
        Positions of these nodes.
    """
    bypassed = set()

    def bypass(references, is_after):
        """Replace references to such nodes by those to their inputs; return a dict from their indices in the list to a `Border`."""
        found = {}
        for number, (position, *_) in enumerate(references):
            border, positions = read_border(symbol, position, is_after)
            if border:
                bypassed.update(positions)
                found[number], references[number] = border, symbol.nodes[positions[-1]]['inputs'][0]
        return found

    outputs, inputs = bypass(symbol.heads, is_after=True), {}
    for node in symbol.nodes:
        if node['op'] == NAME:
            inputs = bypass(node['inputs'], is_after=False)
    return Borders(inputs, outputs), bypassed


def _read_words(path, name):
    arrays = read_parameters(path)
    words = arrays.get(f'arg:{name}')
    if words is None:
        raise UserError(f'{path} has no array arg:{name}, which the symbol requires: copy both files of the same conversion')
    return words
