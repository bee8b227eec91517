"""Inputs and outputs of the models of programs in the shapes of the network, where the program has other ones (`program.borders`).

A sequence (N, C, W) is a map (N, C, 1, W) in a program, a volume (N, C, D, H, W) a map (N, C D, H, W). Nodes at the borders of a model
convert between them. Their names, that of the input or output with `_NAME`, are part of the format of models with a program.
"""

from ..program.borders import border_of
from .stored_programs import store_program

_NAME = '{}_border'  # of the last node, by which an import finds it
_STEPS = ('shape', 'size', 'sizes')  # what the names of the nodes before a reshape whose sizes are open end with
_OPERATORS = ('Squeeze', 'Unsqueeze', 'Reshape')


def with_borders(model, program, output_order, borders):
    """Give the inputs and outputs of a model of a program the shapes of the network.

    An import does not recognize volumes, so that a model with them contains the program.

    Parameters
    ----------
    model : onnx.ModelProto
        Of `export.to_onnx` or `qonnx_export.to_qonnx`, changed in place.
    program, output_order
        What it was made of.
    borders : bmx_melius.deployment.runtime.packed_files.Borders
    """
    import onnx

    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {entry.name for entry in (*graph.input, *graph.output)}

    def free(name):
        while name in taken:
            name += '_'
        taken.add(name)
        return name

    def add(entry, border, inner, sizes):
        """Describe an input or output with its shape in the network, and the value inside, if the model describes such values."""
        if graph.value_info:
            graph.value_info.append(onnx.helper.make_tensor_value_info(inner, onnx.TensorProto.FLOAT, sizes))
        entry.CopyFrom(onnx.helper.make_tensor_value_info(entry.name, onnx.TensorProto.FLOAT, border.in_network(sizes)))

    for number, border in borders.outputs.items():
        entry, sizes = graph.output[number], _sizes(graph.output[number])
        inner = free(f'{entry.name}_map')
        _rename(graph, entry.name, inner)
        graph.node.extend(_nodes(onnx, graph, free, _NAME.format(entry.name), inner, entry.name, border, sizes, outward=True))
        add(entry, border, inner, sizes)
    for number, border in sorted(borders.inputs.items(), reverse=True):
        entry, sizes = graph.input[number], _sizes(graph.input[number])
        inner = free(f'{entry.name}_map')
        _rename(graph, entry.name, inner)
        nodes = _nodes(onnx, graph, free, _NAME.format(entry.name), entry.name, inner, border, sizes, outward=False)
        for position, node in enumerate(nodes):
            graph.node.insert(position, node)
        add(entry, border, inner, sizes)
    onnx.checker.check_model(model)
    if any(border.depth for border in (*borders.inputs.values(), *borders.outputs.values())):
        store_program(model, program, output_order)


def without_borders(onnx, proto, program, order):
    """Return a copy of a model without what `with_borders` adds, and dicts of the `Border` of inputs and of outputs, by their numbers.

    `order` has the number of the program output for each output of the model.
    """
    result, values, found = onnx.ModelProto(), program.values(), ({}, {})
    result.CopyFrom(proto)
    graph = result.graph
    outputs = [values[program.outputs[number]] for number in order]
    for entries, of_program, borders, outward in ((graph.input, program.inputs, found[0], False), (graph.output, outputs, found[1], True)):
        for number, (entry, value) in enumerate(zip(entries, of_program)):
            nodes = {node.name: node for node in graph.node}
            last, shape = nodes.get(_NAME.format(entry.name)), tuple(_sizes(entry))
            border = border_of(shape)
            sizes = border and border.in_program(shape, value.channels)
            if last is None or sizes is None:
                continue
            of_shape, source = nodes.get(f'{last.name}_{_STEPS[0]}'), last.input[0]
            at_border = last.op_type in _OPERATORS and (last.output[0] if outward else source) == entry.name
            if not at_border or of_shape and of_shape.input[0] != source:
                continue  # not what `with_borders` adds: the comparison of the model fails
            inner = last.input[0] if outward else last.output[0]
            for name in (last.name, *(f'{last.name}_{step}' for step in _STEPS)):
                if name in nodes:
                    graph.node.remove(nodes[name])
            _rename(graph, inner, entry.name)
            entry.CopyFrom(onnx.helper.make_tensor_value_info(entry.name, onnx.TensorProto.FLOAT, sizes))
            borders[number] = border
    return result, found


def _sizes(entry):
    """Return the sizes of an input or output: numbers, and names of open ones."""
    return [size.dim_value or size.dim_param for size in entry.type.tensor_type.shape.dim]


def _rename(graph, old, new):
    """Rename a value in all nodes."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _nodes(onnx, graph, free, name, source, target, border, sizes, outward):
    """Return the nodes that convert a value inward or outward, the last one with the name; `sizes` are those in the program.

    `free` returns a name for a value that no other one has.
    """

    def constant(suffix, numbers):
        tensor = onnx.helper.make_tensor(free(f'{name}_{suffix}'), onnx.TensorProto.INT64, [len(numbers)], numbers)
        graph.initializer.append(tensor)
        return tensor.name

    if border.depth is None:
        operator = 'Squeeze' if outward else 'Unsqueeze'
        return [onnx.helper.make_node(operator, [source, constant('axes', [2])], [target], name=name)]
    channels = [border.channels, border.depth] if outward else [border.channels * border.depth]
    if not any(isinstance(size, str) for size in sizes):
        return [onnx.helper.make_node('Reshape', [source, constant('to', [sizes[0], *channels, *sizes[2:]])], [target], name=name)]
    begin = 2 if outward else 3  # of height and width
    shape, size, joined = (f'{name}_{step}' for step in _STEPS)
    shape_value, size_value, joined_value = (free(f'{node}_value') for node in (shape, size, joined))
    ends = [constant('begin', [begin]), constant('end', [begin + 2])]
    return [
        onnx.helper.make_node('Shape', [source], [shape_value], name=shape),
        onnx.helper.make_node('Slice', [shape_value, *ends], [size_value], name=size),
        onnx.helper.make_node('Concat', [constant('first', [0, *channels]), size_value], [joined_value], name=joined, axis=0),
        onnx.helper.make_node('Reshape', [source, joined_value], [target], name=name),
    ]
