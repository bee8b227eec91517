"""Models in which a factor of a whole image multiplies the results of a layer, where it multiplies the few levels that the layer reads.

XNOR-Net scales signs by the mean magnitude of what they are signs of. The layer then reads real numbers; without the factor it is binary.
"""

import numpy as np

from .model import import_onnx_package
from .recognition import has_few_numbers

_LAYERS = ('Conv', 'Gemm', 'MatMul')


def with_factors_after_layers(evaluator):
    """Return an `Evaluator` of the model in which layers read levels without such factors; the given one if there are none."""
    model, found = evaluator.model, {}
    for operator in model.operators:
        levels, factor = _factor(evaluator, operator)
        if factor:
            found[operator.outputs[0]] = levels, factor
    if not found:
        return evaluator
    onnx, _ = import_onnx_package()
    graph = onnx.GraphProto()  # of the new nodes and initializers
    for node in model.proto.graph.node:
        if node.output[0] in found:
            _add_scaled_layer(onnx, evaluator, graph, node, *found[node.output[0]])
        else:
            graph.node.append(node)
    return evaluator.with_nodes(graph.node, graph.initializer)


def _factor(evaluator, operator):
    """Return the names of the levels and of the factor whose product a layer reads; two empty names if it does not read such a product."""
    product = evaluator.producers.get(operator.inputs[0]) if operator.inputs else None
    if operator.kind not in _LAYERS or product is None or product.kind != 'Mul' or operator.attributes.get('transA', 0):
        return '', ''
    if any(name in evaluator.varying for name in operator.inputs[1:]) or not all(name in evaluator.varying for name in product.inputs):
        return '', ''
    for levels, factor in (product.inputs, product.inputs[::-1]):
        expanded = evaluator.producers.get(factor)
        factor = expanded.inputs[0] if expanded is not None and expanded.kind == 'Expand' else factor
        shape = evaluator.shape(levels)
        of_image = factor in evaluator.varying and evaluator.shape(factor) == (shape[0], *(1,) * (len(shape) - 1))
        if of_image and np.prod(shape[1:]) > 1 and has_few_numbers(evaluator.sampled[levels]):
            return levels, factor
    return '', ''


def _add_scaled_layer(onnx, evaluator, graph, node, levels, factor):
    """Add a layer that reads the levels, the product of its results with the factor, and its bias."""
    output, make = node.output[0], onnx.helper.make_node
    layer = onnx.NodeProto()
    layer.CopyFrom(node)
    bias = evaluator.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    del layer.input[:], layer.output[:]
    layer.input.extend([levels, node.input[1]])
    layer.output.append(f'{output}_unscaled')
    scaled = output if bias is None else f'{output}_scaled'
    graph.node.extend([layer, make('Mul', [layer.output[0], factor], [scaled], name=f'{output}_times_factor')])
    if bias is not None:
        beta = next((attribute.f for attribute in node.attribute if attribute.name == 'beta'), 1.0)
        if node.op_type == 'Conv':
            bias = bias.reshape(-1, *(1,) * (len(evaluator.shape(output)) - 2))
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(bias * bias.dtype.type(beta), order='C'), f'{output}_bias'))
        graph.node.append(make('Add', [scaled, f'{output}_bias'], [output], name=f'{output}_biased'))
