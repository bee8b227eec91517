"""Evaluation of models by ONNX Runtime: of any value on samples, and of an elementwise part of a model as a function of numbers."""

import dataclasses

import numpy as np

from ...errors import UserError, last_line, name_some
from ...graph.nodes import shapes_by_name
from ..program.limits import MEMORY_VARIABLE, memory_limit
from .model import import_onnx_package

MAX_OPERATORS = 128  # of a cone
MAX_OPERATIONS = 1 << 37  # elements that operators of cones compute: some minutes; the largest networks need a tenth of it
_SESSION = 1 << 16  # for the preparation of an operator
_BLOCK = 1 << 15  # elements of a value that operators of cones compute at a time
_ADVICE = 'Please fix either the inputs/outputs or the model.'  # of ONNX Runtime
_SHAPE_ONLY = ('Shape', 'Size')  # operators whose results do not depend on the numbers that they read
_COPIES = 4  # of values and constants that an import has at a time at most: in the model, in ONNX Runtime, compared and converted
_MAY_BE_INFINITE = ('Clip', 'Equal', 'Greater', 'GreaterOrEqual', 'Less', 'LessOrEqual', 'Max', 'Min', 'Pad', 'Where')


@dataclasses.dataclass(eq=False)
class Cone:
    """The operators by which a value is computed element by element from another one, and from constants for each channel.

    Attributes
    ----------
    source : str
        Name of the value at which it begins.
    operators : list of Operator
        In topological order; none if the value is the source itself.
    """

    source: str
    operators: list


def input_shapes(model, input_shape):
    """Return the shape of each input by name: `input_shape` as `import_onnx` takes it, or the shape in the model."""
    if not model.inputs:
        raise UserError(f'{model.path} has no input')
    if input_shape is not None:
        first = next(iter(model.inputs))
        shapes = shapes_by_name(input_shape, first)
        if set(shapes) != set(model.inputs):
            raise UserError(f'{model.path} has the inputs {name_some(list(model.inputs))}: give a shape for each of them')
        return shapes
    shapes = {}
    for name, sizes in model.inputs.items():
        shape = (None,) if sizes is None else (sizes[0] or 1, *sizes[1:])
        if None in shape:
            spelled = 'it has none' if sizes is None else ','.join(str(size or '?') for size in shape)
            raise UserError(f'{model.path} leaves the shape of its input {name} open ({spelled}): give it (--input-shape)')
        shapes[name] = shape
    return shapes_by_name(shapes)


class Evaluator:
    """A model that ONNX Runtime computes without optimizations, for inputs of fixed shapes.

    What does not depend on the numbers in the inputs is computed once, and what only leads to it is left out. The other values are
    computed once on a sample: of a model in place of another one only those that differ.

    Parameters
    ----------
    model : bmx_melius.deployment.onnx.model.Model
    shapes : dict of str to tuple of int
        Shape of each input.
    known : dict of str to numpy.ndarray
        Values on the sample that have been computed already.

    Attributes
    ----------
    model : bmx_melius.deployment.onnx.model.Model
        The part that depends on the inputs; other values that it reads are initializers.
    producers : dict of str to Operator
        Name of a value -> the operator that computes it.
    varying : set of str
        Values that depend on the numbers in the inputs.
    sample : dict of str to numpy.ndarray
        Normally distributed inputs, and uniformly distributed ids.
    sampled : dict of str to numpy.ndarray
        All values that depend on the inputs, for those of the sample.

    Raises
    ------
    UserError
        If ONNX Runtime cannot run the model on inputs of these shapes, a value is not a tensor of numbers, or all values take too much
        memory (BMX_MELIUS_MEMORY_LIMIT).
    """

    def __init__(self, model, shapes, known=None):
        self.model, self.shapes = model, shapes
        self._onnx, self._runtime = import_onnx_package()
        self.varying = set(shapes)
        for operator in model.operators:
            if operator.kind not in _SHAPE_ONLY and any(name in self.varying for name in operator.inputs):
                self.varying.update(output for output in operator.outputs if output)
        generator = np.random.RandomState(0)
        self.sample = {name: self._drawn(generator, name, shape) for name, shape in shapes.items()}
        self._sessions, self._cones, self._left, self._constants = {}, {}, MAX_OPERATIONS, {}
        self._compute_constants()
        self.sampled = self.run([*self.producers, *shapes], {**self.sample, **(known or {})})
        self._sessions = {}  # that of all values holds the weights once more
        self._require_memory()

    def _drawn(self, generator, name, shape):
        drawn = generator.randint(self.model.ids[name], size=shape) if name in self.model.ids else generator.normal(size=shape)
        return drawn.astype(np.float32)

    def _compute_constants(self):
        """Leave only what depends on the inputs in the model; constants that it reads and operators compute become initializers."""
        operators = [operator for operator in self.model.operators if any(name in self.varying for name in operator.outputs)]
        read = {name for operator in operators for name in operator.inputs if name and name not in self.varying}
        self.producers = self.model.producers()
        computed = self.run(sorted(read.intersection(self.producers)), self.sample)
        if len(operators) < len(self.model.operators):
            proto, kept = self._onnx.ModelProto(), {operator.outputs[0] for operator in operators}
            proto.CopyFrom(self.model.proto)
            nodes = [node for node in proto.graph.node if node.output[0] in kept]
            initializers = [tensor for tensor in proto.graph.initializer if tensor.name in read]
            initializers += [self._onnx.numpy_helper.from_array(np.asarray(array, order='C'), name) for name, array in computed.items()]
            inputs = [entry for entry in proto.graph.input if entry.name in self.shapes]  # exporters list constants, too
            del proto.graph.node[:], proto.graph.initializer[:], proto.graph.input[:]
            proto.graph.node.extend(nodes)
            proto.graph.initializer.extend(initializers)
            proto.graph.input.extend(inputs)
            self.model = self.model.with_proto(proto)
            self.producers = self.model.producers()
        self._sessions = {}
        self._initializers = {tensor.name: tensor for tensor in self.model.proto.graph.initializer}

    def _require_memory(self):
        """Raise `UserError` if an import, which has several copies of what the model contains and computes, would take too much memory."""
        taken = sum(array.nbytes for array in self.sampled.values()) + sum(tensor.ByteSize() for tensor in self._initializers.values())
        if taken * _COPIES > memory_limit():
            shapes = ', '.join(map(str, self.shapes.values()))
            raise UserError(
                f'{self.model.path} is refused: for an input of {shapes}, its values and constants have {taken} bytes, of which an import '
                f'needs {_COPIES} times as many: more than {memory_limit()} bytes, the limit: set {MEMORY_VARIABLE} to allow more'
            )

    def require_numbers(self):
        """Raise `UserError` if a constant that an operator reads, or an attribute, is NaN, or infinite where that is not a limit."""
        for operator in self.model.operators:
            numbers = {name: self.constant(name) for name in operator.inputs if name and name not in self.varying}
            numbers.update((name, np.asarray(value)) for name, value in operator.attributes.items() if not isinstance(value, str))
            wrong = np.isnan if operator.kind in _MAY_BE_INFINITE else _is_not_finite
            for name, array in numbers.items():
                if array.dtype.kind == 'f' and wrong(array).any():
                    raise UserError(
                        f'{self.model.path}: {name}, which node {operator.name} ({operator.kind}) reads, has elements that are infinite '
                        'or NaN: training diverged, or it is damaged'
                    )

    def shape(self, name):
        """Return the shape of a value on inputs of the given shapes, batch included."""
        return self.sampled[name].shape if name in self.varying else self.constant(name).shape

    def constant(self, name):
        """Return the array of a value that does not depend on data; None for one that does."""
        if name in self.varying:
            return None
        if name not in self._constants:
            if name not in self._initializers:
                raise UserError(f'{self.model.path} is damaged: it reads {name!r}, which nothing computes')
            self._constants[name] = self._onnx.numpy_helper.to_array(self._initializers[name])
        return self._constants[name]

    def run(self, names, inputs):
        """Return the values with the given names, a dict of str to numpy.ndarray, computed from `inputs`, or any values, a dict as well."""
        computed = [name for name in dict.fromkeys(names) if name in self.producers and name not in inputs]
        results = {name: inputs[name] for name in names if name in inputs}
        if computed:
            key = *computed, frozenset(inputs)
            if key not in self._sessions:
                self._sessions = {}  # only the latest one is kept
                self._sessions = {key: self._session(self._leading_to(computed, inputs))}
            session = self._sessions[key]
            fed = {entry.name for entry in session.get_inputs()}
            results.update(zip(computed, self._computed(session, {name: x for name, x in inputs.items() if name in fed})))
        for name in computed:
            if not isinstance(results[name], np.ndarray) or results[name].dtype.kind not in 'biuf':
                operator = self.producers[name]
                raise UserError(
                    f'{self.model.path}: node {operator.name} ({operator.kind}) gives a sequence, an optional value, text or complex '
                    'numbers; only tensors of real numbers are supported'
                )
        return results

    def values(self, names, inputs):
        """Return the same as `run`, of the sample without computing it again."""
        sampled = inputs.keys() == self.sample.keys() and all(np.array_equal(inputs[name], x) for name, x in self.sample.items())
        return {name: self.sampled[name] for name in names} if sampled else self.run(names, inputs)

    def _leading_to(self, names, known):
        """Return a ModelProto of what is needed to compute values from known ones, a dict of str to numpy.ndarray."""
        waiting, needed = list(names), set()
        while waiting:
            name = waiting.pop()
            operator = self.producers.get(name)
            if operator is not None and name not in known and operator not in needed:
                needed.add(operator)
                waiting.extend(operator.inputs)
        first = {operator.outputs[0] for operator in needed}
        read = {name for operator in needed for name in operator.inputs}
        original, graph = self.model.proto, self._onnx.GraphProto(name='part')
        graph.node.extend(node for node in original.graph.node if node.output[0] in first)
        graph.initializer.extend(tensor for tensor in original.graph.initializer if tensor.name in read)
        graph.input.extend(entry for entry in original.graph.input if entry.name in self.shapes)
        graph.input.extend(self._described(name, known[name]) for name in sorted(read.intersection(known, self.producers)))
        graph.output.extend(self._onnx.ValueInfoProto(name=name) for name in names)
        proto = self._onnx.ModelProto(ir_version=original.ir_version, graph=graph)
        proto.opset_import.extend(original.opset_import)
        proto.functions.extend(original.functions)
        return proto

    def _described(self, name, array, shape=None):
        """Return the description of an input with the type and shape of an array, or another shape."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return self._onnx.helper.make_tensor_value_info(name, kind, array.shape if shape is None else shape)

    def _session(self, proto):
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            return self._runtime.InferenceSession(proto.SerializeToString(), options, providers=['CPUExecutionProvider'])
        except Exception as error:  # ONNX Runtime has a class for each kind of failure
            raise UserError(f'{self.model.path}: ONNX Runtime does not load the model: {last_line(error)}') from error

    def _computed(self, session, inputs):
        try:
            return session.run(None, inputs)
        except Exception as error:
            shapes = ', '.join(f'{name} of {x.shape}' for name, x in inputs.items())
            reason = ' '.join(str(error).replace(_ADVICE, '').split())  # of several lines, the last one of which is advice
            raise UserError(f'{self.model.path}: ONNX Runtime cannot run the model on {shapes}: {reason}') from error

    # --- elementwise parts ----------------------------------------------------------------------------------------------------------

    def cone(self, name):
        """Return the largest `Cone` that ends with a value."""
        waiting = [name]
        while waiting:
            value = waiting[-1]
            if value not in self._cones:
                missing = [source for source in self._elementwise_sources(value) if source not in self._cones]
                if missing:
                    waiting.extend(missing)
                    continue
                self._cones[value] = self._cone(value)
            waiting.pop()
        return self._cones[name]

    def _elementwise_sources(self, name):
        """Return the varying inputs of the operator that computes a value, if it computes each element from one element of each."""
        operator = self.producers.get(name)
        if operator is None or operator.kind not in ELEMENTWISE or len(self.shape(name)) < 2 or operator.outputs[0] != name:
            return []
        sources = list(dict.fromkeys(source for source in operator.inputs if source in self.varying))
        constants = [source for source in operator.inputs if source and source not in self.varying]
        if any(self.shape(source) != self.shape(name) for source in sources):
            return []
        if operator.kind in _BY_AXIS and operator.attributes.get('axis', 1) % len(self.shape(name)) != 1:
            return []
        if operator.kind not in PARAMETERS_BY_CHANNEL and any(self.by_channel(source, self.shape(name)) is None for source in constants):
            return []
        return sources

    def _cone(self, name):
        sources = self._elementwise_sources(name)
        cones = [self._cones[source] for source in sources]
        origins = {cone.source for cone in cones}
        if len(origins) != 1 or self.sampled[next(iter(origins))].dtype != np.float32:
            return Cone(name, [])
        operators = list(dict.fromkeys(operator for cone in cones for operator in cone.operators))
        if len(operators) >= MAX_OPERATORS:
            return Cone(name, [])
        operators.append(self.producers[name])
        return Cone(origins.pop(), operators)

    def cones(self, name):
        """Return the cones that end with a value, the largest one first: from each value through which the largest one passes."""
        largest = self.cone(name)
        position = {largest.source: -1, **{operator.outputs[0]: i for i, operator in enumerate(largest.operators)}}
        earliest = [min(position[source] for source in operator.inputs if source in position) for operator in largest.operators]
        found, read = [], len(earliest)
        for i in range(len(earliest) - 1, 0, -1):
            read = min(read, earliest[i])
            source = largest.operators[i - 1].outputs[0]
            if read == i - 1 and self.sampled[source].dtype == np.float32:
                found.append(Cone(source, largest.operators[i:]))
        return [largest, *reversed(found)] if largest.operators else []

    def by_channel(self, name, shape):
        """Return a constant as an array that can be repeated along all axes but the channels; None if it depends on other axes."""
        array = self.constant(name)
        if array.ndim > len(shape):
            return None
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape) if array.ndim else array
        for axis in range(array.ndim):
            if axis != 1 and array.shape[axis] != 1:
                first = array.take([0], axis)
                if not np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=True):
                    return None
                array = first
        return array

    def function(self, cone, name):
        """Return the function from the source of a cone to a value: float32 (channels, n) -> (channels, n), any n."""
        functions = self.functions(cone, [name])
        return lambda x: functions(x)[0]

    def functions(self, cone, names):
        """Return the function from the source of a cone to values of it: float32 (channels, n) -> list of (channels, n), any n.

        Its second argument is the number of the first channel, where x has some of them. Channels are computed in blocks whose values
        stay in the cache of the processor.
        """
        shape = self.shape(cone.source)
        constants, by_channel = {}, {}  # of all channels; of each channel: name -> (array, axis of the channels)
        for operator in cone.operators:
            parameters = operator.kind in PARAMETERS_BY_CHANNEL
            for source in operator.inputs:
                if source and source not in self.varying:
                    array, axis = (self.constant(source), 0) if parameters else (self.by_channel(source, shape), 1)
                    if array.ndim > axis and array.shape[axis] > 1:
                        by_channel[source] = array, axis
                    else:
                        constants[source] = array
        session = self._part(cone, names, constants, [None] * len(shape), {source: array for source, (array, _) in by_channel.items()})
        self._spend(_SESSION * len(cone.operators))

        def computed(x, first=0):
            x = np.ascontiguousarray(x, np.float32)
            channels, count = x.shape
            self._spend(x.size * len(cone.operators))
            size = max(1, _BLOCK // count)
            blocks = []
            for begin in range(0, channels, size):
                block = x[begin : begin + size]
                maps = block.T.copy() if len(shape) == 2 else block.reshape(1, *block.shape, *(1,) * (len(shape) - 3))
                numbers = np.arange(first + begin, first + begin + len(block))
                fed = {source: array.take(numbers, axis) for source, (array, axis) in by_channel.items()}
                results = self._computed(session, {cone.source: maps, **fed})
                blocks.append([y.T if len(shape) == 2 else y.reshape(block.shape) for y in results])
            return blocks[0] if len(blocks) == 1 else [np.concatenate(parts) for parts in zip(*blocks)]

        return computed

    def with_nodes(self, nodes, initializers=()):
        """Return what `replaced` does of the model with other nodes, in the order of computation, and further initializers."""
        proto = self._onnx.ModelProto()
        proto.CopyFrom(self.model.proto)
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        proto.graph.initializer.extend(initializers)
        return self.replaced(proto, self.shapes)

    def without_empty_values(self):
        """Return the `Evaluator` of the model in which values without elements are constants; this one if there are none.

        They depend on no number in the inputs. What is concatenated with others is left out there.

        Raises
        ------
        UserError
            If an output of the model has no elements.
        """
        empty = {name: array for name, array in self.sampled.items() if not array.size}
        for name in self.model.outputs:
            if name in empty:
                raise UserError(f'{self.model.path}: the output {name} has no elements, its shape is {empty[name].shape}')
        constants = {name: self._onnx.numpy_helper.from_array(array, f'{name}/empty') for name, array in empty.items()}
        nodes, read = [], set()
        for node in self.model.proto.graph.node:
            inputs = [name for name in node.input if name not in empty] if node.op_type == 'Concat' else []
            inputs = inputs or [constants[name].name if name in empty else name for name in node.input]
            if inputs != list(node.input):
                read.update(empty.keys() & set(node.input))
                original, node = node, self._onnx.NodeProto()
                node.CopyFrom(original)
                node.input[:] = inputs
            nodes.append(node)
        return self.with_nodes(nodes, [constants[name] for name in sorted(read)]) if read else self

    def replaced(self, proto, shapes):
        """Return the `Evaluator` of a model that takes the place of this one, without the nodes that lead to no output of it.

        This one gives up its values: those that the same nodes compute there are not computed again.
        """
        needed, nodes = {entry.name for entry in proto.graph.output}, []
        for node in reversed(proto.graph.node):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        nodes.reverse()
        before = {node.output[0]: node.SerializeToString() for node in self.model.proto.graph.node}
        varying, same = {*shapes}, {*shapes} if shapes == self.shapes else set()  # the sample of other shapes is another one
        for node in nodes:
            varying.update(node.output)
            if before.get(node.output[0]) == node.SerializeToString() and same.issuperset(varying.intersection(node.input)):
                same.update(node.output)
        known = {name: array for name, array in self.sampled.items() if name in same}
        del self.sampled, proto.graph.node[:]
        self._sessions = {}
        proto.graph.node.extend(nodes)
        return Evaluator(self.model.with_proto(proto), shapes, known)

    def moved(self, cone, name, array, others=None):
        """Return a value that the operators of a cone compute for an array in place of its source, float32.

        `others` are arrays in place of further values, by their names, for operators that have several sources.
        """
        sources = {source for operator in cone.operators for source in operator.inputs if source and source not in self.varying}
        session = self._part(cone, [name], {source: self.constant(source) for source in sources}, array.shape, others or {})
        return self._computed(session, {cone.source: array, **(others or {})})[0]

    def _part(self, cone, names, constants, shape, fed=()):
        """Return a session that computes values from the source of a cone, and from the constants `fed`, by the operators of the cone."""
        onnx = self._onnx
        originals = {node.output[0]: node for node in self.model.proto.graph.node if node.output}
        graph = onnx.GraphProto(name='cone')
        graph.node.extend(originals[operator.outputs[0]] for operator in cone.operators)
        for node in graph.node:
            if node.op_type == 'Dropout':
                del node.output[1:]  # masks
        graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array, order='C'), source) for source, array in constants.items())
        graph.input.append(onnx.helper.make_tensor_value_info(cone.source, onnx.TensorProto.FLOAT, shape))
        graph.input.extend(self._described(source, array, [None] * array.ndim) for source, array in dict(fed).items())
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        proto = onnx.ModelProto(ir_version=self.model.proto.ir_version, graph=graph)
        proto.opset_import.extend(self.model.proto.opset_import)
        return self._session(proto)

    def _spend(self, operations):
        self._left -= operations
        if self._left < 0:
            raise UserError(
                f'{self.model.path} is refused: the search for signs and quantizers takes too long. Values of few pixels look like '
                'the result of one: give a larger image or batch (--input-shape, or the input of torch.onnx.export). Chains of '
                'elementwise operators are tried from each value in them: run onnxsim on the model, which shortens them'
            )


def _is_not_finite(array):
    return ~np.isfinite(array)


_BY_AXIS = ('QuantizeLinear', 'DequantizeLinear')  # their constants are numbers, or vectors along an axis
PARAMETERS_BY_CHANNEL = ('BatchNormalization', *_BY_AXIS)  # their constants are vectors with an element for each channel
# Not periodic functions: they may take a value around any number.
ELEMENTWISE = frozenset(
    (
        *('Abs', 'Add', 'And', 'BatchNormalization', 'Cast', 'Ceil', 'Clip', 'DequantizeLinear', 'Div', 'Dropout', 'Elu', 'Equal'),
        *('Erf', 'Exp', 'Floor', 'Gelu', 'Greater', 'GreaterOrEqual', 'HardSigmoid', 'HardSwish', 'Identity', 'IsNaN', 'LeakyRelu'),
        *('Less', 'LessOrEqual', 'Log', 'Max', 'Min', 'Mish', 'Mul', 'Neg', 'Not', 'Or', 'PRelu', 'Pow', 'QuantizeLinear'),
        *('Reciprocal', 'Relu', 'Round', 'Selu', 'Sigmoid', 'Sign', 'Softplus', 'Softsign', 'Sqrt', 'Sub', 'Sum', 'Tanh'),
        *('ThresholdedRelu', 'Where', 'Xor'),
    )
)
