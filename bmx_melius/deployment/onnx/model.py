"""ONNX models from files: what is read of them, in which limits.

A file is not trusted. Nothing in it is executed here; external data are read from the folder of the file only, and models with operators
that other libraries would have to provide are refused. onnx reads the rest, which is why `trial` reads a model elsewhere first.
"""

import collections
import dataclasses
import os
from typing import Sequence

import numpy as np

from ...errors import UserError, is_printable, last_line
from ...files.other_formats import other_format
from . import forms, qonnx

MAX_BYTES = (1 << 31) - 1  # of a file with its external data: what Protobuf reads
MAX_NODES = 1 << 14
MAX_NAME = 1 << 12  # characters
MAX_RANK = 8
OPSETS = range(9, 24)
_DOMAINS = ('', 'ai.onnx', *qonnx.DOMAINS)

OF_FILE = ('precision', 'integer_inputs', 'ids', 'left_out')  # attributes of a `Model` that its ModelProto does not tell


@dataclasses.dataclass(eq=False)
class Operator:
    """One node of a model.

    Attributes
    ----------
    name : str
        For messages: the node's own name, or the name of its first output.
    kind : str
        Operator of ONNX.
    attributes : dict
        Numbers, lists of numbers, str and NumPy arrays.
    inputs, outputs : list of str
        Names of values; '' for one that is left out.
    """

    name: str
    kind: str
    attributes: dict
    inputs: list
    outputs: list


@dataclasses.dataclass
class Model:
    """A model, checked.

    Attributes
    ----------
    path : str
        For messages.
    proto : onnx.ModelProto
        Without external data, functions, and operators of QONNX.
    operators : list of Operator
        In topological order.
    inputs : dict of str to tuple of (int or None), or None
        Shapes of the inputs; None for sizes that the model leaves open, and for a shape that it does not have.
    outputs : list of str
    size : int
        Bytes of the file and its external data.
    precision : str
        The type of its real numbers, which are float32 here: 'float16', 'bfloat16', 'float64', or '' where they are float32 in the file.
    integer_inputs : sequence of str
        Inputs that are 8-bit integers in the file, and the same numbers in float32 here.
    ids : dict of str to int
        Inputs that are numbers of rows of embeddings, integers in the file and float32 here -> how many rows there are.
    left_out : sequence of str
        Operators of the file, with their kinds, that are not among these; without constants.
    """

    path: str
    proto: object
    operators: list
    inputs: dict
    outputs: list
    size: int
    precision: str = ''
    integer_inputs: 'Sequence[str]' = ()
    ids: 'dict[str, int]' = dataclasses.field(default_factory=dict)
    left_out: 'Sequence[str]' = ()

    def producers(self):
        """Return the operator that computes each value, by its name."""
        return {output: operator for operator in self.operators for output in operator.outputs if output}

    def with_proto(self, proto):
        """Return the model with a changed ModelProto."""
        onnx, _ = import_onnx_package()
        model = model_of(onnx, proto, self.path, self.size)
        return dataclasses.replace(model, **{name: getattr(self, name) for name in OF_FILE})


def import_onnx_package():
    """Return the packages onnx and onnxruntime. Raises `UserError` with the way to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UserError(f"ONNX models are read by onnx and onnxruntime: pip install 'bmx-melius[onnx]' ({error})") from error
    return onnx, onnxruntime


def read_model(path):
    """Read an ONNX file, with its external data.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Model

    Raises
    ------
    UserError
        If the file cannot be read, is not a valid model, is too large, or has operators that are not of ONNX or QONNX.
    """
    onnx, _ = import_onnx_package()
    path = os.fspath(path)
    content = _content(path)
    size = len(content)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf's implementations raise different classes
        raise UserError(_not_a_model(path, content, last_line(error))) from error
    if not proto.graph.node or not proto.graph.output or not proto.opset_import:
        raise UserError(_not_a_model(path, content, 'it has no operators, or no output'))
    _require_opset(proto, path)
    forms.lower_version(onnx, proto, path)
    proto = _without_functions(onnx, proto, path)
    del proto.graph.value_info[:]  # ONNX Runtime finds the shapes
    if len(proto.graph.node) > MAX_NODES:
        raise UserError(f'{path} has {len(proto.graph.node)} operators; at most {MAX_NODES} are read')
    _refuse_foreign(onnx, proto, path)
    size += _load_external_data(onnx, proto, path, MAX_BYTES - size)
    for tensor in forms.tensors(proto):
        try:
            onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # of NumPy and onnx
            raise UserError(f'{path}: the size of the tensor {tensor.name} does not fit its data: {last_line(error)}') from error
    precision, integers = forms.make_float32(onnx, proto), forms.make_integer_inputs_float32(onnx, proto)
    _name_nodes(proto)
    if any(map(qonnx.is_quantizer, proto.graph.node)):
        proto = qonnx.without_quantizers(onnx, proto, path)
    forms.fix_ranks(onnx, proto)
    _name_nodes(proto)
    _require_valid(onnx, proto, path)
    ids = forms.make_ids_float32(onnx, proto, path)
    forms.resolve_cast_like(onnx, proto)
    forms.pad_dilated_convolutions(onnx, proto)
    forms.move_weights_right(onnx, proto)
    _name_nodes(proto)
    return dataclasses.replace(model_of(onnx, proto, path, size), precision=precision, integer_inputs=integers, ids=ids)


def _require_valid(onnx, proto, path):
    """Raise `UserError` unless a model is valid. Inputs and outputs may have no shape, and no type, which then means real numbers."""
    shapeless = []
    for value in (*proto.graph.input, *proto.graph.output):
        if not value.type.WhichOneof('value') or value.type.HasField('tensor_type'):
            kind = value.type.tensor_type
            kind.elem_type = kind.elem_type or onnx.TensorProto.FLOAT
            if not kind.HasField('shape'):
                shapeless.append(kind)
                kind.shape.SetInParent()  # the checker requires one
    try:
        onnx.checker.check_model(proto)
    except Exception as error:  # ValidationError, and errors of protobuf
        raise UserError(f'{path} is not a valid ONNX model: {_first_line(error)}') from error
    for kind in shapeless:
        kind.ClearField('shape')


def model_of(onnx, proto, path, size):
    """Return the `Model` of a checked ModelProto; `path` and `size` describe the file."""
    operators = [_operator(onnx, node) for node in proto.graph.node]
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: _shape_of(onnx, value, path) for value in proto.graph.input if value.name not in constants}
    return Model(path, proto, operators, inputs, [value.name for value in proto.graph.output], size)


def _content(path):
    """Return the bytes of a file of at most `MAX_BYTES`. Devices and pipes, which may have no end, are refused."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            folder = ': give the .onnx file in this folder' if os.path.isdir(path) else ''
            raise UserError(f'{path} is not a file{folder}')
        size = os.path.getsize(path)
        if size > MAX_BYTES:
            raise UserError(f'{path} has {size} bytes; models of at most {MAX_BYTES} bytes are read')
        with open(path, 'rb') as file:
            return file.read(size)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero
        if isinstance(error, UserError):
            raise
        raise UserError(f'{path} cannot be read: {getattr(error, "strerror", error)}') from error


def _not_a_model(path, content, reason):
    other = other_format(path, content)
    return f'{path} is not an ONNX model, but {other}' if other else f'{path} is not an ONNX model, or damaged: {reason}'


def _first_line(error):
    """Return the first line of a message of onnx, which has a list of nodes after it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _require_opset(proto, path):
    for entry in proto.opset_import:
        if entry.domain in ('', 'ai.onnx') and entry.version not in OPSETS:
            raise UserError(
                f'{path} uses version {entry.version} of the operators of ONNX; {OPSETS[0]} to {OPSETS[-1]} are read: export it with '
                'another opset_version'
            )


def _without_functions(onnx, proto, path):
    """Return the model with the nodes of its own functions in place of calls of them."""
    if not proto.functions:
        return proto
    _require_few_calls(proto, path)
    try:
        import onnx.inliner

        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:  # of C++
        raise UserError(f'{path} has functions that cannot be inlined: {_first_line(error)}') from error


def _require_few_calls(proto, path):
    """Raise `UserError` if functions call each other in a circle, which ends the process in onnx, or if inlining makes too many nodes."""
    functions = {(function.domain, function.name): function for function in proto.functions}
    sizes, waiting = {}, [*functions]
    begun = set()
    while waiting:
        key = waiting[-1]
        called = [(node.domain, node.op_type) for node in functions[key].node if (node.domain, node.op_type) in functions]
        missing = [other for other in called if other not in sizes]
        if key not in sizes and missing:
            if key in begun:
                raise UserError(f'{path} has functions that call each other in a circle')
            begun.add(key)
            waiting.extend(missing)
            continue
        sizes[key] = len(functions[key].node) + sum(sizes[other] for other in called)
        waiting.pop()
    size = sum(sizes.get((node.domain, node.op_type), 1) for node in proto.graph.node)
    if max(size, *sizes.values()) > MAX_NODES:
        raise UserError(f'{path} has more than {MAX_NODES} operators, including its functions')


def _refuse_foreign(onnx, proto, path):
    """Raise `UserError` for operators of others, for graphs in nodes, and for what is neither a number nor a tensor of numbers."""
    _require_names(proto, path)
    if proto.graph.sparse_initializer:
        raise UserError(f'{path} has sparse tensors, which are not supported')
    for tensor in proto.graph.initializer:
        _require_numbers(onnx, tensor, f'the tensor {tensor.name}', path)
    for node in proto.graph.node:
        name = node.name or (node.output[0] if node.output else '')
        if not node.output or not node.output[0]:
            raise UserError(f'{path}: node {name} ({node.op_type}) computes nothing')
        if node.domain not in _DOMAINS:
            raise UserError(f'{path}: node {name} is of the operator {node.op_type} of {node.domain!r}, which is not an operator of ONNX')
        if any(attribute.HasField('g') or attribute.graphs for attribute in node.attribute):
            raise UserError(f'{path}: node {name} ({node.op_type}) contains a graph (a loop or a branch), which is not supported')
        for attribute in node.attribute:
            where = f'the attribute {attribute.name} of node {name} ({node.op_type})'
            if attribute.HasField('t'):
                _require_numbers(onnx, attribute.t, where, path)
            fields = ('tensors', 'sparse_tensors', 'type_protos', 'strings')
            others = any(getattr(attribute, field) for field in fields)
            if others or any(attribute.HasField(field) for field in ('sparse_tensor', 'tp')) or attribute.ref_attr_name:
                raise UserError(f'{path}: {where} is neither a number nor a tensor, which is not supported')


def _require_names(proto, path):
    """Raise `UserError` for names that a message cannot show."""
    graph = proto.graph
    names = [tensor.name for tensor in graph.initializer] + [value.name for value in (*graph.input, *graph.output)]
    for node in graph.node:
        names += [node.name, node.op_type, *node.input, *node.output, *(attribute.name for attribute in node.attribute)]
    for name in names:
        if not isinstance(name, str) or len(name) > MAX_NAME or not is_printable(name):  # bytes where it is not UTF-8
            raise UserError(f'{path} has a name that is not text, or longer than {MAX_NAME} characters: {name[:40]!r}')


def _require_numbers(onnx, tensor, where, path):
    """Raise `UserError` unless a tensor has numbers of a type that NumPy has, and a reasonable shape."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        dtype = np.dtype(object)
    if dtype.kind not in 'biuf':
        raise UserError(f'{path}: {where} has elements that are not numbers, or of an unknown type')
    if len(tensor.dims) > MAX_RANK or any(size < 0 for size in tensor.dims):
        raise UserError(f'{path}: {where} has the shape {tuple(tensor.dims)[:20]}; tensors of up to {MAX_RANK} axes are read')


def _load_external_data(onnx, proto, path, allowed):
    """Load the external data of tensors from the folder of the file; return their bytes."""
    folder = os.path.realpath(os.path.dirname(path) or '.')
    total = 0
    for tensor in forms.tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get('location', '')
        file = os.path.realpath(os.path.join(folder, location)) if is_printable(location) else ''
        if not location or os.path.isabs(location) or not file or os.path.commonpath([folder, file]) != folder:
            raise UserError(f'{path}: the data of {tensor.name} are outside of its folder ({location!r}), which is not allowed')
        try:
            if not os.path.isfile(file):
                raise UserError(f'{path}: {location}, which has the data of {tensor.name}, does not exist or is not a file')
            offset, length = int(entries.get('offset', 0)), int(entries.get('length', -1))
            available = os.path.getsize(file) - offset
            length = available if length < 0 else length
            if offset < 0 or length > available:
                raise UserError(f'{path}: {location} ends before the data of {tensor.name}: copy it again')
            total += length
            if total > allowed:
                raise UserError(f'{path} has more than {MAX_BYTES} bytes with its external data')
            with open(file, 'rb') as stored:
                stored.seek(offset)
                tensor.raw_data = stored.read(length)
        except (OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f'{path}: the data of {tensor.name} in {location} cannot be read: {error}') from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return total


def _name_nodes(proto):
    """Give each node without a name, or with the name of another node, its own name."""
    seen, repetitions = set(), collections.Counter()
    for node in proto.graph.node:
        given = name = node.name or (node.output[0] if node.output else node.op_type)
        while name in seen:
            repetitions[given] += 1
            name = f'{given}_{repetitions[given]}'
        node.name = name
        seen.add(name)


def _operator(onnx, node):
    attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        elif isinstance(value, bytes):
            value = value.decode(errors='replace')
        attributes[attribute.name] = value
    return Operator(node.name, node.op_type, attributes, list(node.input), list(node.output))


def _shape_of(onnx, value, path):
    kind = value.type.tensor_type
    if not value.type.HasField('tensor_type') or kind.elem_type != onnx.TensorProto.FLOAT:
        raise UserError(
            f'{path}: the input {value.name} is neither a tensor of real numbers nor of ids of an embedding: export a network that takes '
            'float32'
        )
    if not kind.HasField('shape'):
        return None
    if not 1 <= len(kind.shape.dim) <= MAX_RANK:
        raise UserError(f'{path}: the input {value.name} has {len(kind.shape.dim)} axes; 1 to {MAX_RANK} are read')
    return tuple(axis.dim_value if axis.dim_value > 0 else None for axis in kind.shape.dim)
