"""The part of a model that computes named values, where a network is to end before the end of the model."""

from ...errors import UserError, name_some
from .model import import_onnx_package


def ending_at(model, names):
    """Return the part of a model that computes some of its values, which are its outputs.

    Parameters
    ----------
    model : Model
    names : sequence of str
        Names of values, or of operators, which stand for their first output. The outputs have this order.

    Returns
    -------
    Model
        Its `left_out` names the operators that are not in it.

    Raises
    ------
    UserError
        If the model has no operator and no value of a name.
    """
    producers, first_outputs = model.producers(), {operator.name: operator.outputs[0] for operator in model.operators}
    values = [name if name in producers else first_outputs.get(name) for name in names]
    if None in values:
        some = name_some(list(reversed(first_outputs)))
        raise UserError(f'{model.path} has no operator and no value {names[values.index(None)]!r}; its operators are, from the end, {some}')
    needed, waiting = set(), list(values)
    while waiting:
        operator = producers.get(waiting.pop())
        if operator is not None and operator not in needed:
            needed.add(operator)
            waiting += operator.inputs
    onnx, _ = import_onnx_package()
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    read = {name for operator in needed for name in operator.inputs}
    del proto.graph.node[:], proto.graph.initializer[:], proto.graph.output[:]
    proto.graph.node.extend(node for node, operator in zip(model.proto.graph.node, model.operators) if operator in needed)
    proto.graph.initializer.extend(tensor for tensor in model.proto.graph.initializer if tensor.name in read)
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in dict.fromkeys(values))
    part = model.with_proto(proto)
    rest = (operator for operator in model.operators if operator not in needed and operator.kind != 'Constant')
    part.left_out = [f'{operator.name} ({operator.kind})' for operator in rest]
    return part
