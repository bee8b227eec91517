"""Reader of the files of packed networks that does not need MXNet."""

import dataclasses

from ...container import read_parameters
from ...errors import UserError
from ...exported import Exported
from ...symbol_json import VARIABLE, SymbolJson
from ..program.packed_operator import NAME, STRUCTURE, text_of
from ..program.program import Program


@dataclasses.dataclass(frozen=True)
class Lines:
    """Numbers of the inputs and outputs of a network that are (batch, channels, width), which the program has as maps of height 1."""

    inputs: frozenset = frozenset()
    outputs: frozenset = frozenset()


def read_packed(prefix, decodes=True):
    """Read a packed network.

    Parameters
    ----------
    prefix : str or os.PathLike
        See `Session`.
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
    lines : Lines

    Raises
    ------
    UserError
        If the files are missing or do not hold a packed network; the message names the file.
    """
    files = Exported(prefix)
    symbol_file, params_file = files.symbol_file, files.parameter_file(0)
    input_names, words_name, structure, output_order, lines = _read_symbol(symbol_file)
    words = _read_words(params_file, words_name)
    try:
        program, found = Program.outline(words)
        program = Program.from_words(words) if decodes else program
    except UserError as error:
        raise UserError(f'{params_file}: {error}') from error
    inputs_fit, outputs_fit = len(program.inputs) == len(input_names), max(output_order) < len(program.outputs)
    # symbols of earlier versions have no structure, and only MXNet needs it
    same = structure is None or structure == text_of(found)
    if not same or not inputs_fit or not outputs_fit:
        raise UserError(f'{symbol_file} and {params_file} are not from the same conversion: convert the network again')
    return program, words, input_names, output_order, lines


def runs_without_mxnet(prefix):
    """Return whether the symbol of files with this prefix is one packed operator, so that a `Session` can run them."""
    symbol = SymbolJson.read(Exported(prefix).symbol_file)
    _, operators = _operators(symbol)
    return [node['op'] for node in operators] == [NAME]


def _read_symbol(path):
    """Return the names of the inputs and the words, the structure or None, the operator output for each network output, and `Lines`."""
    symbol = SymbolJson.read(path)
    lines, operators = _operators(symbol)
    packed = [node for node in operators if node['op'] == NAME]
    foreign = sorted({node['op'] for node in operators if node['op'] != NAME})
    if foreign:
        beside = f' beside {"a packed one" if len(packed) == 1 else f"{len(packed)} packed ones"}' if packed else ''
        raise UserError(
            f'{path} has operators of MXNet{beside} ({", ".join(foreign)}): load it with MXNet,'
            + (' SymbolBlock.imports' if packed else ' or convert it first')
        )
    if len(packed) != 1:
        raise UserError(f'{path} has {len(packed)} packed operators; a session runs one: load it with MXNet, SymbolBlock.imports')
    if not all(symbol.nodes[source] is packed[0] for source, *_ in symbol.heads):
        raise UserError(f'{path} has outputs that its packed operator does not compute: load it with MXNet')
    *inputs, words = [symbol.nodes[source]['name'] for source, *_ in packed[0]['inputs']] or ['']
    return inputs, words, packed[0]['attrs'].get(STRUCTURE), [slot for _, slot, *_ in symbol.heads], lines


def _operators(symbol):
    """Return `Lines` and the nodes of operators without those that `_bypass_line_borders` bypasses."""
    lines, borders = _bypass_line_borders(symbol)
    return lines, [node for position, node in enumerate(symbol.nodes) if node['op'] != VARIABLE and position not in borders]


def _bypass_line_borders(symbol):
    """Bypass the nodes with which conversion makes maps of inputs (batch, channels, width), and the reverse for outputs.

    Returns
    -------
    lines : Lines
    borders : set of int
        Positions of these nodes.
    """
    borders = set()

    def before(reference, operator):
        """Return the reference to the input of such a node, or None if it is another node."""
        node = symbol.nodes[reference[0]]
        if node['op'] != operator or node['attrs'].get('axis') != '2':
            return None
        borders.add(reference[0])
        return node['inputs'][0]

    outputs = {number: before(head, 'squeeze') for number, head in enumerate(symbol.heads)}
    symbol.heads = [outputs[number] or head for number, head in enumerate(symbol.heads)]
    inputs = {}
    for node in symbol.nodes:
        if node['op'] == NAME:
            inputs = {number: before(source, 'expand_dims') for number, source in enumerate(node['inputs'])}
            node['inputs'] = [inputs[number] or source for number, source in enumerate(node['inputs'])]
    lines = (frozenset(number for number, source in found.items() if source) for found in (inputs, outputs))
    return Lines(*lines), borders


def _read_words(path, name):
    arrays = read_parameters(path)
    words = arrays.get(f'arg:{name}')
    if words is None:
        raise UserError(f'{path} has no array arg:{name}, which the symbol requires: copy both files of the same conversion')
    return words
