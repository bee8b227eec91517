"""Forms in which files store what ONNX Runtime and the import take in one form only.

Types of real numbers and of inputs, numbers in arrays of one element, and dense layers whose weight is on the left become what most
exporters write.
"""

import numpy as np

from ...errors import UserError

_NEWEST = 21  # of ONNX's operators; versions 22 and 23 of operators that were there before only have more types of elements
_FORMAT = 10  # version of the format of files (IR) that came with these operators; later versions add types, and notes on devices
_NUMBERS = {'Clip': (1, 2), 'Pad': (2,), 'Range': (0, 1, 2), 'CumSum': (1,)}  # inputs without axes
_VECTORS = {  # inputs with one axis
    **{'Slice': (1, 2, 3, 4), 'Pad': (1, 3), 'Resize': (1, 2, 3), 'TopK': (1,), 'ConstantOfShape': (0,)},
    **dict.fromkeys(('Squeeze', 'Unsqueeze', 'Reshape', 'Expand', 'Tile', 'Split'), (1,)),
    **dict.fromkeys(('ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceSum', 'ReduceProd', 'ReduceL1', 'ReduceL2', 'ReduceSumSquare'), (1,)),
}


def lower_version(onnx, proto, path):
    """Declare a model of later versions of ONNX's operators and format as one of versions that more packages read."""
    proto.ir_version = min(proto.ir_version, _FORMAT)
    newer = [entry for entry in proto.opset_import if entry.domain in ('', 'ai.onnx') and entry.version > _NEWEST]
    for entry in newer:
        for node in proto.graph.node:
            if node.domain in ('', 'ai.onnx') and onnx.defs.has(node.op_type) and not _is_known(onnx, node.op_type):
                raise UserError(
                    f'{path}: node {node.name or node.output[0]} is of the operator {node.op_type} of version {entry.version}, of which '
                    f'there is no packed form; operators up to version {_NEWEST} are read'
                )
        entry.version = _NEWEST


def _is_known(onnx, kind):
    try:
        onnx.defs.get_schema(kind, _NEWEST, '')
    except onnx.defs.SchemaError:
        return False
    return True


def tensors(proto):
    """Return the constants of a model, also in attributes."""
    attributes = (attribute for node in proto.graph.node for attribute in node.attribute)
    return [*proto.graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField('t'))]


def make_float32(onnx, proto):
    """Make the real numbers of a model float32 if its inputs or weights have another precision; return the name of that, '' if not."""
    types = {onnx.TensorProto.FLOAT16: 'float16', onnx.TensorProto.BFLOAT16: 'bfloat16', onnx.TensorProto.DOUBLE: 'float64'}
    inputs = [value.type.tensor_type.elem_type for value in proto.graph.input]
    weights = [tensor.data_type for tensor in tensors(proto) if len(tensor.dims) > 1]
    found = [types[number] for number in (*inputs, *weights) if number in types]
    if not found:
        return ''
    largest = np.finfo(np.float32).max
    for tensor in tensors(proto):
        if tensor.data_type in types:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            array = np.where(np.isfinite(array), np.clip(array, -largest, largest), array).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == 'Cast' and attribute.name == 'to' and attribute.i in types:
                attribute.i = onnx.TensorProto.FLOAT
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type in types:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return found[0]


def make_integer_inputs_float32(onnx, proto):
    """Make inputs of 8-bit integers float32; return their names. `DequantizeLinear` of such an input becomes its arithmetic."""
    integers = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [entry for entry in proto.graph.input if entry.name not in constants and entry.type.tensor_type.elem_type in integers]
    names, nodes = {entry.name for entry in inputs}, []
    if not inputs:
        return ()
    for entry in inputs:
        entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for node in proto.graph.node:
        if node.op_type != 'DequantizeLinear' or len(node.input) < 2 or node.input[0] not in names:
            nodes.append(node)
            continue
        x, make = node.input[0], onnx.helper.make_node
        if len(node.input) > 2 and node.input[2]:
            zero, difference = f'{node.output[0]}_zero_point', f'{node.output[0]}_difference'
            nodes += [make('Cast', [node.input[2]], [zero], to=onnx.TensorProto.FLOAT), make('Sub', [x, zero], [difference])]
            x = difference
        nodes.append(make('Mul', [x, node.input[1]], [node.output[0]], name=node.name))
    _set_nodes(proto, nodes)
    return tuple(entry.name for entry in inputs)


def make_ids_float32(onnx, proto, path):
    """Make inputs of integers that select rows of tables float32; return a dict of their names to the numbers of rows.

    Raises `UserError` if another operator reads such an input, too.
    """
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    entries = {entry.name: entry for entry in proto.graph.input if entry.type.tensor_type.elem_type in integers}
    tables = {name: array.shape for name, array in constants(onnx, proto).items() if array.ndim == 2 and array.dtype == np.float32}
    ids = {}
    for node in proto.graph.node:
        axis = next((attribute.i for attribute in node.attribute if attribute.name == 'axis'), 0)
        if node.op_type == 'Gather' and axis == 0 and node.input[0] in tables and node.input[1] in entries:
            rows = tables[node.input[0]][0]
            ids[node.input[1]] = min(rows, ids.get(node.input[1], rows))
    casts, integer = [], {name: f'{name}_of_integers' for name in ids}
    for node in proto.graph.node:
        for name in integer.keys() & {*node.input}:
            if node.op_type not in ('Gather', 'Shape'):
                raise UserError(
                    f'{path}: the input {name} has ids for an embedding, but node {node.name} ({node.op_type}) reads it as well, for which '
                    'there is no packed form: compute what it needs outside of the network'
                )
        node.input[:] = [integer.get(name, name) for name in node.input]
    for name in ids:
        kind = entries[name].type.tensor_type
        casts.append(onnx.helper.make_node('Cast', [name], [integer[name]], to=kind.elem_type))
        kind.elem_type = onnx.TensorProto.FLOAT
    _set_nodes(proto, [*casts, *proto.graph.node])
    return ids


def fix_ranks(onnx, proto):
    """Reshape constants of one element to the number of axes that operators require: none for a number, one for a list."""
    known = constants(onnx, proto)
    for node in proto.graph.node:
        wanted = {**dict.fromkeys(_NUMBERS.get(node.op_type, ()), ()), **dict.fromkeys(_VECTORS.get(node.op_type, ()), (1,))}
        for position, shape in wanted.items():
            array = known.get(node.input[position]) if position < len(node.input) else None
            if array is not None and array.size == 1 and array.shape != shape:
                name = f'{node.output[0]}_{position}_{node.op_type}'
                proto.graph.initializer.append(onnx.numpy_helper.from_array(array.reshape(shape), name))
                node.input[position] = name


def constants(onnx, proto):
    """Return the arrays of initializers and of `Constant` by name."""
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == 'Constant' and node.attribute and node.attribute[0].name.startswith('value'):
            value = onnx.helper.get_attribute_value(node.attribute[0])
            tensor = isinstance(value, onnx.TensorProto)
            dtype = np.float32 if node.attribute[0].name.startswith('value_float') else np.int64
            known[node.output[0]] = onnx.numpy_helper.to_array(value) if tensor else np.asarray(value, dtype)
    return known


def resolve_cast_like(onnx, proto):
    """Replace `CastLike` by `Cast` where the type of what it casts to is known."""
    if not any(node.op_type == 'CastLike' for node in proto.graph.node):
        return
    try:
        graph = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # of C++; what remains is refused with the operator's name
        return
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)}
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    for node in proto.graph.node:
        if node.op_type == 'CastLike' and types.get(node.input[1]):
            node.CopyFrom(onnx.helper.make_node('Cast', node.input[:1], node.output, node.name, to=types[node.input[1]]))


def pad_dilated_convolutions(onnx, proto):
    """Write the padding by which dilated convolutions of stride 1 keep the size of a map as numbers: ONNX Runtime does not compute it."""
    known = constants(onnx, proto)
    for node in proto.graph.node:
        a = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        dilations = a.get('dilations', [1])
        if node.op_type != 'Conv' or a.get('auto_pad') not in (b'SAME_UPPER', b'SAME_LOWER') or {*dilations} == {1}:
            continue
        weight = known.get(node.input[1])
        kernel = a.get('kernel_shape') or weight is not None and weight.shape[2:]
        if not kernel or {*a.get('strides', [1])} != {1}:
            continue
        smaller = [(size - 1) * step // 2 for size, step in zip(kernel, dilations)]
        larger = [(size - 1) * step - less for size, step, less in zip(kernel, dilations, smaller)]
        pads = [*smaller, *larger] if a['auto_pad'] == b'SAME_UPPER' else [*larger, *smaller]
        kept = [attribute for attribute in node.attribute if attribute.name not in ('auto_pad', 'pads')]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute('pads', pads)])


# --- products ---------------------------------------------------------------------------------------------------------------------------


def move_weights_right(onnx, proto):
    """Write products with a weight as dense layers and convolutions: of `Einsum`, and of a transposed value on the right of a weight."""
    _replace(proto, lambda node: _product_of_einsum(onnx, node, proto) if node.op_type == 'Einsum' else None)
    varying = _varying(proto)
    producers = {output: node for node in proto.graph.node for output in node.output}

    def turned(node):
        """Return nodes that compute W x^T as the transposed x W^T."""
        if node.op_type not in ('MatMul', 'Gemm') or len(node.input) != 2 or node.input[0] in varying or node.input[1] not in varying:
            return None
        weight, x = node.input
        flags = {attribute.name: attribute.i for attribute in node.attribute if attribute.name in ('transA', 'transB')}
        before = producers.get(x)
        if node.op_type == 'Gemm' and flags.get('transB'):
            rows = x
        elif node.op_type == 'MatMul' and before is not None and _is_exchange(before):
            rows = before.input[0]
        else:
            return None
        output, make = node.output[0], onnx.helper.make_node
        right, product = f'{output}_weight', f'{output}_rows'
        nodes = [] if flags.get('transA') else [make('Transpose', [weight], [right], perm=[1, 0])]
        factor = {attribute.name: attribute.f for attribute in node.attribute if attribute.name == 'alpha'}
        nodes.append(make(node.op_type, [rows, right if nodes else weight], [product], node.name, **factor))
        return [*nodes, make('Transpose', [product], [output], perm=[1, 0])]

    _replace(proto, turned)
    _remove_pairs(onnx, proto)


def _is_exchange(node):
    """Return whether a node exchanges two axes, of a matrix unless it is refused later."""
    orders = [list(attribute.ints) for attribute in node.attribute if attribute.name == 'perm']
    return node.op_type == 'Transpose' and orders in ([], [[1, 0]])


def _remove_pairs(onnx, proto):
    """Replace the second of two exchanges of axes by the value before both, where `move_weights_right` has added the first one."""
    producers = {output: node for node in proto.graph.node for output in node.output}

    def direct(node):
        before = producers.get(node.input[0]) if node.input else None
        if not _is_exchange(node) or before is None or not _is_exchange(before) or not before.input[0].endswith('_rows'):
            return None
        return [onnx.helper.make_node('Identity', before.input[:1], node.output, node.name)]

    _replace(proto, direct)


def _product_of_einsum(onnx, node, proto):
    """Return nodes that compute the product of two values over one common axis, or None if an `Einsum` is something else."""
    equation = next((attribute.s.decode(errors='replace') for attribute in node.attribute if attribute.name == 'equation'), '')
    terms, _, result = equation.replace(' ', '').partition('->')
    first, _, second = terms.partition(',')
    varying = _varying(proto)
    if not all(map(_is_plain, (first, second, result))) or len(node.input) != 2 or {*first} & {*second} & {*result}:
        return None
    x, weight = node.input
    if x not in varying and second[:1] == result[:1]:  # the weight comes first, and the second operand has the batch
        x, weight, first, second = weight, x, second, first
    common = {*first} & {*second}
    if weight in varying or len(common) != 1 or len(second) != 2 or {*result} != {*first} ^ {*second}:
        return None
    (axis,), output, make = common, node.output[0], onnx.helper.make_node
    (channel,) = {*second} - common
    named = first.replace(axis, channel)
    if len(first) > 2 and first[1] == axis and named == result:  # maps (N, C, ...)
        ordered, nodes = (
            (weight, []) if second == channel + axis else (f'{output}_weight', [make('Transpose', [weight], [f'{output}_weight'])])
        )
        shape = f'{output}_kernel_shape'
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, *[1] * (len(first) - 2)]), shape))
        nodes.append(make('Reshape', [ordered, shape], [f'{output}_kernel']))
        return [*nodes, make('Conv', [x, f'{output}_kernel'], [output], node.name)]
    if len(first) != 2 or {named, named[::-1]}.isdisjoint({result}):
        return None
    nodes, names = [], []
    for name, letters, wanted in ((x, first, first.replace(axis, '') + axis), (weight, second, axis + channel)):
        names.append(name if letters == wanted else f'{output}_{len(names)}')
        if letters != wanted:
            nodes.append(make('Transpose', [name], names[-1:], perm=[1, 0]))
    product = output if result == first.replace(axis, '') + channel else f'{output}_rows'
    nodes.append(make('MatMul', names, [product], node.name))
    return nodes if product == output else [*nodes, make('Transpose', [product], [output], perm=[1, 0])]


def _is_plain(letters):
    return letters.isalpha() and len({*letters}) == len(letters)


def _varying(proto):
    """Return the names of values that depend on an input."""
    known = {tensor.name for tensor in proto.graph.initializer}
    varying = {entry.name for entry in proto.graph.input} - known
    for node in proto.graph.node:
        if varying.intersection(node.input):
            varying.update(node.output)
    return varying


def _replace(proto, function):
    """Replace each node for which a function returns nodes by these."""
    replaced = [(node, function(node)) for node in proto.graph.node]
    if any(nodes for _, nodes in replaced):
        _set_nodes(proto, [new for node, nodes in replaced for new in nodes or [node]])


def _set_nodes(proto, nodes):
    nodes = [*nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
