"""Running a packed network without MXNet."""

import numpy as np

from ..container import read_parameters
from ..errors import UserError
from ..exported import Exported
from ..symbol_json import VARIABLE, SymbolJson
from .native import Runner
from .operations import ProgramError
from .packed_operator import NAME
from .program import Program
from .reference import check_inputs


class Session:
    """A packed network, ready to run; MXNet is not needed. May be used by several threads at once.

    Parameters
    ----------
    network : str, os.PathLike or bmx_melius.deploy.program.Program
        The prefix of what `bmx_melius.convert` wrote, PREFIX-symbol.json and PREFIX-0000.params; the name of the symbol file will do, too.
    threads : int
        Threads of a run; by default as many as OpenMP offers.
    check_finite : bool
        Whether to look for NaN and infinities in the inputs of each run, which takes a hundredth of its time. Without it such an input
        gives results that mean nothing, often without a NaN among them: a sign has two values, and NaN gets one of them.

    Attributes
    ----------
    input_names : list of str
    input_shapes : list of tuple
        As at conversion, the batch None. Height and width may differ, as far as the network allows.

    Raises
    ------
    UserError
        When the files are missing or not those of a packed network, naming the file and what is wrong.
    """

    def __init__(self, network, threads=0, check_finite=False):
        if not isinstance(threads, int) or threads < 0:
            raise UserError(f'threads must be 1 or more, or 0 for as many as there are, not {threads!r}')
        self._threads, self._check_finite = threads, check_finite
        if isinstance(network, Program):
            program, words = network, network.to_words()
            self.input_names = [f'data{number}' for number in range(len(program.inputs))]
            self._output_order = range(len(program.outputs))
        else:
            program, words, self.input_names, self._output_order = read_packed(network)
        self.input_shapes = [(None, *value.shape) for value in program.inputs]
        self._runner = Runner(program, words)

    def __call__(self, *inputs):
        """Run the network.

        Parameters
        ----------
        *inputs : numpy.ndarray
            float32, (batch, channels, height, width) or (batch, channels), one for each input, the batch 1 or more. Their values are
            finite, and no sum of magnitudes that a layer makes of them exceeds 3e38; results for others are not defined.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            float32; a list where the network has several outputs.

        Raises
        ------
        UserError
            When the inputs do not fit; with `check_finite`, when they hold a value that is not finite.
        """
        arrays = _arrays(inputs)
        if self._check_finite:
            check_inputs(self._runner.program, arrays)
            self._require_finite(arrays)
        try:
            outputs = self._runner.run(arrays, self._threads)
        except ProgramError as error:
            check_inputs(self._runner.program, arrays)  # or it is not their size that is wrong
            raise ProgramError(f'{error}{self._other_sizes(arrays)}') from error
        outputs = [outputs[number] for number in self._output_order]
        return outputs[0] if len(outputs) == 1 else outputs

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
        """What to add to an error where height and width are not those at conversion."""
        expected, given = [shape[1:] for shape in self.input_shapes], [array.shape[1:] for array in arrays]
        if given == expected:
            return ''
        expected, given = (', '.join(map(str, shapes)) for shapes in (expected, given))
        return f'; inputs of the size at conversion, {expected}, fit, {given} does not'

    def profile(self, *inputs):
        """Run once; return (name, seconds, multiply-accumulates, whether these are binary) of each step. Needs the compiled engine."""
        return self._runner.profile(_arrays(inputs), self._threads)

    def working_memory(self, *inputs):
        """Bytes a run on these inputs takes beside weights, inputs and outputs. Needs the compiled engine."""
        return self._runner.working_memory(_arrays(inputs), self._threads)


def read_packed(prefix):
    """Read a packed network.

    Parameters
    ----------
    prefix : str or os.PathLike
        As of `Session`.

    Returns
    -------
    program : bmx_melius.deploy.program.Program
    words : numpy.ndarray
        The program as it was stored, int32.
    input_names : list of str
    output_order : list of int
        Which of the program's outputs are those of the network.

    Raises
    ------
    UserError
        When the files are missing or not those of a packed network, naming the file and what is wrong.
    """
    files = Exported(prefix)
    symbol_file, params_file = files.symbol_file, files.parameter_file(0)
    input_names, words_name, words_count, output_order = _read_symbol(symbol_file)
    words = _read_words(params_file, words_name)
    try:
        program = Program.from_words(words)
    except UserError as error:
        raise UserError(f'{params_file}: {error}') from error
    inputs_fit, outputs_fit = len(program.inputs) == len(input_names), max(output_order) < len(program.outputs)
    if words_count != str(len(words)) or not inputs_fit or not outputs_fit:
        raise UserError(f'{symbol_file} and {params_file} are not of one conversion: convert the network again')
    return program, words, input_names, output_order


def _arrays(inputs):
    return [array if type(array) is np.ndarray else _array(number, array) for number, array in enumerate(inputs)]


def _array(number, given):
    if isinstance(given, np.ma.MaskedArray):
        raise UserError(f'input {number} is a masked array, and a network has no use for the mask: give it filled, array.filled(value)')
    try:
        np.asarray(given, np.float32)  # or NumPy would make an array of objects of a ragged list, with a warning
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise UserError(f'input {number} is no array of numbers: {error}') from error


def _read_symbol(path):
    """The names of the inputs, that of the words and their number, and which outputs of the operator are those of the network."""
    symbol = SymbolJson.read(path)
    operators = [node for node in symbol.nodes if node['op'] != VARIABLE]
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
        raise UserError(f'{path} has outputs that its packed operator does not make: load it with MXNet')
    *inputs, words = [symbol.nodes[source]['name'] for source, *_ in packed[0]['inputs']] or ['']
    return inputs, words, packed[0]['attrs'].get('program_words'), [slot for _, slot, *_ in symbol.heads]


def _read_words(path, name):
    arrays = read_parameters(path)
    words = arrays.get(f'arg:{name}')
    if words is None:
        raise UserError(f'{path} has no array arg:{name}, which the symbol asks for: copy both files of one conversion')
    return words
