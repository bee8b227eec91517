"""Execution of packed networks without MXNet."""

import hashlib
import os
from typing import Any, List, Optional, Tuple, Union

import numpy as np

from ...errors import UserError
from ...files.exported import Description, Exported
from ...forking import lazy_attribute
from ...vision.classifier import Classifier
from ...vision.preprocessing import Image, InputSpec
from ..program.ids import rows_by_input
from ..program.operations import ProgramError
from ..program.program import Program
from ..program.reference import check_inputs, infer_shapes
from .engine import PRECISIONS, Runner, check_threads, default_threads, instruction_sets, missing, require_engine
from .packed_files import Borders, read_packed


class Session:
    """A packed network, ready to run without MXNet. Thread-safe.

    Inputs must be finite: NaN and infinities give results that look valid but are meaningless, unless `check_finite` refuses them.

    A session is pickled, and copied by `copy.deepcopy`, as the path of its files, which must exist where it is loaded.

    Parameters
    ----------
    network : str, os.PathLike or bmx_melius.deployment.program.program.Program
        Prefix of the files written by `bmx_melius.convert`, PREFIX-symbol.json and PREFIX-0000.params, or the path of the symbol file.
    threads : int
        Number of threads of a run, 1 to 1024. They compute one image each as long as the batch has images for all of
        them, and share each of the remaining images.
        The default, 0, is one thread for each core available to the process (by its affinity and the CPU quota of its control group), or
        ``OMP_NUM_THREADS`` if that is less. It does not depend on whether MXNet is loaded. A server with several processes, or several
        threads that run sessions concurrently, should use ``threads=1`` in each: cores that compute different images need not wait for
        each other.
    check_finite : bool
        Whether to check the inputs of each run for NaN and infinities, which takes about 1 % of its time. Without the check such inputs
        give meaningless results, often without any NaN, because a sign has two values and NaN gets one of them.
    precision : str
        ``'exact'``: a run gives the same bits with every instruction set of the compiled engine, number of threads and batch.
        ``'fast'``: on processors with AMX, float layers of many pixels are computed with tiles, in another order and with errors of the
        same size; elsewhere the same as 'exact'. ``'bf16'``: on processors with AVX512_BF16, inputs and weights of most float convolutions
        are rounded to bfloat16 (8 bits), which takes about half their time and changes some signs; elsewhere the same as 'exact'. Measure
        the accuracy of your network before you use it. Binary layers are exact with all of them.

    Attributes
    ----------
    input_names : list of str
    input_shapes : list of tuple
        Shapes at conversion, with the batch None. Other heights and widths are accepted if the network allows them.
    input_spec : InputSpec or None
        Preprocessing of images, from the description of the network, which `bmx_melius.convert` stores in the files; None if it is unknown.
    class_names : list of str or None
        Names of the classes, likewise.

    Raises
    ------
    UserError
        If the files are missing or do not hold a packed network (the message names the file), or if `threads` or `precision` is none of
        the above.

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
    >>> session
    Session(packed, 8x8, ..., 1 thread)
    """

    def __init__(
        self, network: 'Union[str, os.PathLike[str], Program]', threads: int = 0, check_finite: bool = False, precision: str = 'exact'
    ) -> None:
        check_threads(threads)
        if precision not in PRECISIONS:
            raise UserError(f"precision must be 'exact', 'fast' or 'bf16', not {precision!r}")
        self._threads, self._check_finite = int(threads), check_finite
        source = network if isinstance(network, Program) else os.path.abspath(network)
        self._arguments = source, self._threads, check_finite, precision
        if isinstance(network, Program):
            program, words = network, network.to_words()
            self._name, self._description = 'program', Description({}, 'the program')
            self.input_names = [f'data{number}' for number in range(len(program.inputs))]
            self._output_order, self._borders = range(len(program.outputs)), Borders()
        else:
            files = Exported.of(network)
            program, words, self.input_names, self._output_order, self._borders = read_packed(files, decodes=bool(missing()))
            self._name, self._description = files.prefix, files.description()
        self.input_shapes: List[Tuple[Optional[int], ...]] = [
            _in_network(self._borders.inputs.get(number), (None, *value.shape)) for number, value in enumerate(program.inputs)
        ]
        self._ids = rows_by_input(program)
        self.input_spec: Optional[InputSpec] = self._description.input_spec()
        self.class_names: Optional[List[str]] = self._description.class_names()
        try:
            self._runner = Runner(program, words, precision)
        except ProgramError as error:
            raise ProgramError(f'{self._name}: {error}') from error

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), self._arguments

    def __repr__(self) -> str:
        """Return the network, the size of its inputs, and what computes it: ``Session(meliusnet22, 224x224, avx2, 2 threads)``."""
        name = self._description.model().get('name') or os.path.basename(self._name)
        inputs = ' + '.join('x'.join(map(str, shape[2:] or shape[1:])) for shape in self.input_shapes)
        return f'Session({name}, {inputs}, {self._computed_by()})'

    def _computed_by(self):
        isa, _ = instruction_sets()
        if isa is None:
            return 'NumPy'
        threads = self._threads or default_threads()
        return f'{isa}, {threads} thread{"s" if threads > 1 else ""}'

    def classify(self, image: Image, top: int = 5) -> List[Tuple[str, float]]:
        """Return the most probable classes of an image. Requires only NumPy and, except for arrays, Pillow.

        Parameters
        ----------
        image : path, bytes, PIL.Image.Image or numpy.ndarray
            An image file, or its content; or pixels, uint8, of any size: (height, width, 3), RGB, or (height, width, 1) or
            (height, width), gray. They are preprocessed by `input_spec`.
        top : int
            Number of classes, at least 1.

        Returns
        -------
        list of tuple (str, float)
            Names of the classes, or their numbers if the files do not contain names, and probabilities; the most probable one first.

        Raises
        ------
        OSError
            If the file cannot be read.
        UserError
            If it cannot be decoded, the files do not describe the preprocessing, or the network is not a classifier.

        Examples
        --------
        >>> import mxnet as mx
        >>> import numpy as np
        >>> import bmx_melius as bmx
        >>> net = mx.gluon.nn.HybridSequential()
        >>> net.add(bmx.BinaryConv2D(64, kernel_size=3, padding=1), mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(2))
        >>> net.initialize()
        >>> net.hybridize()
        >>> _ = net(mx.nd.random.normal(shape=(1, 3, 32, 32)))
        >>> net.export('net')
        >>> spec = bmx.InputSpec(size=32, resize=36)
        >>> _ = bmx.convert(
        ...     'net-symbol.json', 'net-0000.params', 'packed', (1, *spec.shape), input_spec=spec, class_names=['cat', 'dog']
        ... )
        >>> photo = np.random.RandomState(0).randint(0, 256, (48, 64, 3)).astype(np.uint8)
        >>> sorted(name for name, probability in bmx.Session('packed').classify(photo))
        ['cat', 'dog']
        """
        if isinstance(top, bool) or not isinstance(top, int) or top < 1:
            raise UserError(f'top must be a whole number of at least 1, not {top!r}')
        classifier = self._classifier
        (rows,) = classifier.most_probable(classifier(classifier.spec.array(image), ['the image']), top)
        return [(str(row['class']) if row['name'] is None else row['name'], row['probability']) for row in rows]

    @lazy_attribute
    def _classifier(self):
        if self.input_spec is None:
            raise UserError(
                f'{self._name} has no description of the preprocessing of images: convert the network again with '
                'input_spec=InputSpec(...), or call the session with preprocessed arrays'
            )
        return classifier_of(self, self._name, self.input_spec, self.class_names, self._description.source)

    def output_shapes(self, *shapes: Tuple[int, ...]) -> List[Tuple[int, ...]]:
        """Return the shapes of the outputs for inputs of these shapes, batch included. Raises `UserError` if the shapes do not fit.

        Examples
        --------
        >>> import mxnet as mx
        >>> import bmx_melius as bmx
        >>> net = bmx.BinaryConv2D(64, kernel_size=3)
        >>> net.initialize()
        >>> net.hybridize()
        >>> _ = net(mx.nd.random.normal(shape=(1, 32, 8, 8)))
        >>> net.export('net')
        >>> _ = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 32, 8, 8))
        >>> bmx.Session('packed').output_shapes((2, 32, 8, 8))
        [(2, 64, 6, 6)]
        """
        inferred = infer_shapes(self._runner.program, [self._shape_in_program(number, shape) for number, shape in enumerate(shapes)])
        found = [tuple(inferred[number]) for number in self._output_order]
        return [_in_network(self._borders.outputs.get(number), shape) for number, shape in enumerate(found)]

    def __call__(self, *inputs: np.ndarray) -> Union[np.ndarray, Any]:  # a list if there are several outputs
        """Run the network.

        Parameters
        ----------
        *inputs : numpy.ndarray
            One array for each input, with a batch of 1 or more: ids of embeddings, integers (batch, tokens); pixels, uint8
            (batch, channels, height, width), if the files describe their normalization, which they get; or float32,
            (batch, channels, height, width), (batch, channels, width),
            (batch, channels, depth, height, width) or (batch, channels). Results are undefined unless all values are finite and no layer
            computes a sum of magnitudes beyond 3e38.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            float32; a list if the network has several outputs.

        Raises
        ------
        UserError
            If the inputs do not fit, an id is not one of those of the embedding, or, with `check_finite`, inputs are not finite.
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
        outputs = [array.reshape(_in_network(self._borders.outputs.get(number), array.shape)) for number, array in enumerate(outputs)]
        return outputs[0] if len(outputs) == 1 else outputs

    def _maps(self, inputs):
        """Return the inputs as arrays of the ranks of the program's inputs."""
        arrays = [self._normalized(number, array) for number, array in enumerate(_arrays(inputs))]
        for number in self._borders.inputs.keys() & set(range(len(arrays))):
            arrays[number] = arrays[number].reshape(self._shape_in_program(number, arrays[number].shape))
        return arrays

    def _normalized(self, number, array):
        """Return an input as float32, if it consists of ids, or of pixels, which are normalized."""
        if number in self._ids and array.dtype.kind in 'iu':
            return self._checked_ids(number, array)
        if array.dtype != np.uint8:
            return array
        if self.input_spec is None:
            raise UserError(f'input {number} is uint8, but {self._name} has no description of the normalization of pixels: give float32')
        return self.input_spec.normalized(array)

    def _checked_ids(self, number, ids):
        wrong = (ids < 0) | (ids >= self._ids[number])
        if wrong.any():
            place = tuple(map(int, np.argwhere(wrong)[0]))
            raise UserError(
                f'input {number} ({self.input_names[number]}) has the id {ids[place]} at {place}; '
                f'the embedding has the ids 0 to {self._ids[number] - 1}'
            )
        return ids.astype(np.float32)

    def _shape_in_program(self, number, shape):
        """Return the shape in the program of an input with the given number."""
        border = self._borders.inputs.get(number)
        if border is None:
            return tuple(shape)
        channels = self._runner.program.inputs[number].channels
        found = border.in_program(tuple(shape), channels)
        if found is None:
            expected = border.expected(channels)
            raise ProgramError(f'input {number} must have the shape {expected}, not {tuple(shape)}')
        return found

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
        """Return the end of an error message about input sizes other than at conversion, or an empty string."""
        expected = [shape[1:] for shape in self.input_shapes]
        given = [_in_network(self._borders.inputs.get(number), array.shape)[1:] for number, array in enumerate(arrays)]
        if given == expected:
            return ''
        expected, given = (', '.join(map(str, shapes)) for shapes in (expected, given))
        return f'; the network was converted with inputs of {expected} and does not accept {given}'

    def fingerprint(self) -> str:
        """Return the SHA-256 of the outputs for a fixed input, as 64 hexadecimal digits.

        With ``precision='exact'`` it is the same on all processors that the compiled engine supports, so that it verifies a deployed
        network and its engine: one sign that differs would change it. Each input has one image of the shape at conversion, with the
        numbers ``random.randint(-2**23, 2**23, shape) / 2**22``, float32, where ``random = numpy.random.RandomState(0)`` generates those
        of all inputs, in order; ids are ``random.randint(0, number of ids, shape)``. The outputs follow each other as little-endian
        float32. NumPy adds in another order, so that the compiled
        engine is required.

        Raises
        ------
        UserError
            If the engine has not been compiled.

        Examples
        --------
        >>> import mxnet as mx
        >>> import bmx_melius as bmx
        >>> net = bmx.BinaryConv2D(64, kernel_size=3)
        >>> net.initialize(mx.init.One())
        >>> net.hybridize()
        >>> _ = net(mx.nd.random.normal(shape=(1, 32, 8, 8)))
        >>> net.export('net')
        >>> _ = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 32, 8, 8))
        >>> bmx.Session('packed').fingerprint()
        'c6f5d818c426522d980ae0f86c211170b62e59153f00af80dc441e547d2cf1c0'
        """
        require_engine()
        random = np.random.RandomState(0)
        shapes = [(1, *shape[1:]) for shape in self.input_shapes]
        outputs = self(*(self._drawn(random, number, shape) for number, shape in enumerate(shapes)))
        digest = hashlib.sha256()
        for array in [outputs] if isinstance(outputs, np.ndarray) else outputs:
            digest.update(array.astype('<f4').tobytes())
        return digest.hexdigest()

    def _drawn(self, random, number, shape):
        if number in self._ids:
            return random.randint(0, self._ids[number], shape)
        return (random.randint(-(2**23), 2**23, shape) / 2**22).astype(np.float32)

    def profile(self, *inputs: np.ndarray) -> List[Tuple[str, float, int, int]]:
        """Run once; return (name, seconds, multiply-accumulates, their kind) of each step. Requires the compiled engine.

        Kinds: 0 for products of floats, 1 for binary products, 2 for products of 8-bit integers.
        """
        return self._runner.profile(self._maps(inputs), self._threads)

    def working_memory(self, *inputs: np.ndarray) -> int:
        """Return the bytes that a run needs in addition to weights, inputs and outputs. Requires the compiled engine."""
        return self._runner.working_memory(self._maps(inputs), self._threads)


def classifier_of(session: Session, name: str, spec: InputSpec, class_names: Optional[List[str]], source: str) -> Classifier:
    """Return the `Classifier` that a session runs. Parameters and errors as for `Classifier`."""
    return Classifier(name, session, session.output_shapes((1, *spec.shape)), spec, class_names, source)


def _in_network(border, shape):
    return border.in_network(shape) if border else shape


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
