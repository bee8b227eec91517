"""Execution of packed networks without MXNet."""

import dataclasses
import os
from typing import List, Union

import numpy as np

from ...container import read_parameters
from ...errors import UserError
from ...exported import Exported
from ...symbol_json import VARIABLE, SymbolJson
from ..program.operations import ProgramError
from ..program.packed_operator import NAME, STRUCTURE, text_of
from ..program.program import Program
from ..program.reference import check_inputs
from .engine import Runner, check_threads


class Session:
    """A packed network, ready to run without MXNet. Thread-safe.

    Parameters
    ----------
    network : str, os.PathLike or bmx_melius.deployment.program.program.Program
        Prefix of the files written by `bmx_melius.convert`, PREFIX-symbol.json and PREFIX-0000.params, or the path of the symbol file.
    threads : int
        Number of threads of a run, 1 to 1024. They share each image, or compute one image each if the batch has at least as many images.
        The default, 0, is one thread for each core available to the process (by its affinity and the CPU quota of its control group), or
        ``OMP_NUM_THREADS`` if that is less. It does not depend on whether MXNet is loaded. A server with several processes, or several
        threads that run sessions concurrently, should use ``threads=1`` in each: cores that compute different images need not wait for
        each other.
    check_finite : bool
        Whether to check the inputs of each run for NaN and infinities, which takes about 1 % of its time. Without the check such inputs
        give meaningless results, often without any NaN, because a sign has two values and NaN gets one of them.

    Attributes
    ----------
    input_names : list of str
    input_shapes : list of tuple
        Shapes at conversion, with the batch None. Other heights and widths are accepted if the network allows them.

    Raises
    ------
    UserError
        If the files are missing or do not hold a packed network (the message names the file), or if `threads` is out of range.

    Examples
    --------
    >>> import mxnet as mx
    >>> import numpy as np
    >>> import bmx_melius as bmx
    >>> net = bmx.BinaryConv2D(64, kernel_size=3, padding=1)
    >>> net.initialize()
    >>> net.hybridize()
    >>> _ = net(mx.nd.random.normal(shape=(1, 32, 8, 8)))
    >>> net.export('net')
    >>> _ = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 32, 8, 8))
    >>> session = bmx.Session('packed', threads=1)
    >>> bool((session(np.zeros((2, 32, 8, 8), np.float32)) == net(mx.nd.zeros((2, 32, 8, 8))).asnumpy()).all())
    True
    """

    def __init__(self, network: Union[str, os.PathLike, Program], threads: int = 0, check_finite: bool = False) -> None:
        check_threads(threads)
        self._threads, self._check_finite = int(threads), check_finite
        if isinstance(network, Program):
            program, words = network, network.to_words()
            self.input_names = [f'data{number}' for number in range(len(program.inputs))]
            self._output_order, self._lines = range(len(program.outputs)), Lines()
        else:
            program, words, self.input_names, self._output_order, self._lines = read_packed(network)
        self.input_shapes = [
            (None, value.channels, value.width) if number in self._lines.inputs else (None, *value.shape)
            for number, value in enumerate(program.inputs)
        ]
        self._runner = Runner(program, words)

    def __call__(self, *inputs: np.ndarray) -> Union[np.ndarray, List[np.ndarray]]:
        """Run the network.

        Parameters
        ----------
        *inputs : numpy.ndarray
            One float32 array (batch, channels, height, width), (batch, channels, width) or (batch, channels) for each input, with a batch
            of 1 or more. Results are undefined unless all values are finite and no layer computes a sum of magnitudes beyond 3e38.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            float32; a list if the network has several outputs.

        Raises
        ------
        UserError
            If the inputs do not fit or, with `check_finite`, are not finite.
        """
        arrays = self._maps(inputs)
        if self._check_finite:
            check_inputs(self._runner.program, arrays)
            self._require_finite(arrays)
        try:
            outputs = self._runner.run(arrays, self._threads)
        except ProgramError as error:
            check_inputs(self._runner.program, arrays)  # raises the better message if more than their size is wrong
            raise ProgramError(f'{error}{self._other_sizes(arrays)}') from error
        outputs = [outputs[number] for number in self._output_order]
        outputs = [array[:, :, 0] if number in self._lines.outputs else array for number, array in enumerate(outputs)]
        return outputs[0] if len(outputs) == 1 else outputs

    def _maps(self, inputs):
        """Return the inputs as arrays of the ranks of the program's inputs."""
        arrays = _arrays(inputs)
        for number in self._lines.inputs & set(range(len(arrays))):
            if arrays[number].ndim != 3:
                expected = f'(batch, {self.input_shapes[number][1]}, width)'
                raise ProgramError(f'input {number} must have the shape {expected}, not {arrays[number].shape}')
            arrays[number] = arrays[number][:, :, None]
        return arrays

    def _require_finite(self, arrays):
        for number, array in enumerate(arrays):
            finite = np.isfinite(array)
            if not finite.all():
                place = tuple(map(int, np.argwhere(~finite)[0]))
                raise UserError(
                    f'input {number} ({self.input_names[number]}) has {finite.size - finite.sum()} values that are not finite, '
                    f'the first one {array[place]} at {place}'
                )

    def _other_sizes(self, arrays):
        """Return the end of an error message about input sizes that differ from those at conversion, or an empty string."""
        expected, given = [shape[1:] for shape in self.input_shapes], [array.shape[1:] for array in arrays]
        if given == expected:
            return ''
        expected, given = (', '.join(map(str, shapes)) for shapes in (expected, given))
        return f'; the network was converted with inputs of {expected} and does not accept {given}'

    def profile(self, *inputs):
        """Run once; return (name, seconds, multiply-accumulates, whether these are binary) of each step. Requires the compiled engine."""
        return self._runner.profile(self._maps(inputs), self._threads)

    def working_memory(self, *inputs):
        """Return the bytes that a run needs in addition to weights, inputs and outputs. Requires the compiled engine."""
        return self._runner.working_memory(self._maps(inputs), self._threads)


@dataclasses.dataclass(frozen=True)
class Lines:
    """Numbers of the inputs and outputs of a network that are (batch, channels, width), which the program has as maps of height 1."""

    inputs: frozenset = frozenset()
    outputs: frozenset = frozenset()


def read_packed(prefix):
    """Read a packed network.

    Parameters
    ----------
    prefix : str or os.PathLike
        See `Session`.

    Returns
    -------
    program : bmx_melius.deployment.program.program.Program
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
        program = Program.from_words(words)
    except UserError as error:
        raise UserError(f'{params_file}: {error}') from error
    inputs_fit, outputs_fit = len(program.inputs) == len(input_names), max(output_order) < len(program.outputs)
    # symbols of earlier versions have no structure, and only MXNet needs it
    same = structure is None or structure == text_of(Program.structure_of(words))
    if not same or not inputs_fit or not outputs_fit:
        raise UserError(f'{symbol_file} and {params_file} are not from the same conversion: convert the network again')
    return program, words, input_names, output_order, lines


def _arrays(inputs):
    return [array if type(array) is np.ndarray else _array(number, array) for number, array in enumerate(inputs)]


def _array(number, given):
    if isinstance(given, np.ma.MaskedArray):
        raise UserError(f'input {number} is a masked array, and masks are not supported: pass array.filled(value)')
    try:
        np.asarray(given, np.float32)  # raises for a ragged list, of which np.asarray would make an object array
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise UserError(f'input {number} is not an array of numbers: {error}') from error


def _read_symbol(path):
    """Return the names of the inputs and the words, the structure or None, the operator output for each network output, and `Lines`."""
    symbol = SymbolJson.read(path)
    lines, borders = _bypass_line_borders(symbol)
    operators = [node for position, node in enumerate(symbol.nodes) if node['op'] != VARIABLE and position not in borders]
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
