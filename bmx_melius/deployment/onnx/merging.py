"""Models in which channels and another axis are one axis from the beginning, where a `Reshape` makes them one.

A thermometer code compares each channel of an image with several thresholds: (N, C, 1, H, W) with (C, K, 1, 1), which a `Reshape` makes
(N, C K, H, W). Elementwise operators do the same before a `Reshape` and after it. Here they are after it, where their values are maps.
"""

import numpy as np

from .evaluation import ELEMENTWISE, PARAMETERS_BY_CHANNEL
from .model import import_onnx_package


def with_merged_channels(evaluator):
    """Return an `Evaluator` of the model in which elementwise operators compute maps; the given one if they do already."""
    merging = _Merging(evaluator)
    for operator in evaluator.model.operators:
        if operator.kind in ('Reshape', 'Flatten') and operator.outputs[0] in evaluator.varying:
            merging.merge(operator)
    if not merging.nodes:
        return evaluator
    nodes = [new for node in evaluator.model.proto.graph.node for new in merging.nodes.get(node.output[0], [node])]
    return evaluator.with_nodes(nodes, merging.initializers)


class _Merging:
    """New nodes in place of `Reshape` operators, by the names of their outputs."""

    def __init__(self, evaluator):
        self._evaluator, self.onnx = evaluator, import_onnx_package()[0]
        self.nodes, self.initializers = {}, []

    def merge(self, operator):
        """Replace an operator that merges axes 1 and 2 of a value that elementwise operators compute."""
        name, output = operator.inputs[0], operator.outputs[0]
        before, after = self._evaluator.shape(name), self._evaluator.shape(output)
        if len(before) != 5 or after != (before[0], before[1] * before[2], *before[3:]) or not self._is_elementwise(name):
            return
        nodes, made = [], {}
        merged = self._merged(name, before, nodes, made, output)
        self.nodes[output] = [*nodes, self.onnx.helper.make_node('Identity', [merged], [output], name=operator.name)]

    def _is_elementwise(self, name):
        operator = self._evaluator.producers.get(name)
        if operator is None or operator.kind not in ELEMENTWISE or operator.kind in PARAMETERS_BY_CHANNEL or len(operator.outputs) > 1:
            return False
        return all(len(self._evaluator.shape(source)) == 5 for source in operator.inputs if source in self._evaluator.varying)

    def _merged(self, name, full, nodes, made, output):
        """Return the name of a value, whose axes are repeated to the shape `full`, with axes 1 and 2 merged; add the nodes that make it."""
        if name in made or not name:
            return made.get(name, name)
        constant = self._evaluator.constant(name)
        if constant is not None:
            made[name] = self._constant(_merged_array(constant, full), f'{output}_{name}')
            return made[name]
        made[name] = f'{output}_{name}_merged'
        if self._is_elementwise(name):
            operator = self._evaluator.producers[name]
            inputs = [self._merged(source, full, nodes, made, output) for source in operator.inputs]
            node = self.onnx.NodeProto()
            node.CopyFrom(next(node for node in self._evaluator.model.proto.graph.node if name in node.output))
            del node.input[:], node.output[:]
            node.input.extend(inputs)
            node.output.append(made[name])
            node.name = made[name]
            nodes.append(node)
        else:
            sizes = (full[0], full[1], full[2], *self._evaluator.shape(name)[3:])
            repeated = self._constant(np.array(sizes), f'{output}_{name}_sizes')
            map_sizes = self._constant(np.array((sizes[0], sizes[1] * sizes[2], *sizes[3:])), f'{output}_{name}_map')
            make, wide = self.onnx.helper.make_node, f'{output}_{name}_repeated'
            nodes.append(make('Expand', [name, repeated], [wide], name=wide))
            nodes.append(make('Reshape', [wide, map_sizes], [made[name]], name=made[name]))
        return made[name]

    def _constant(self, array, name):
        self.initializers.append(self.onnx.numpy_helper.from_array(np.asarray(array, order='C'), name))
        return name


def _merged_array(array, full):
    """Return constants that are repeated to the shape `full`, with axes 1 and 2 merged."""
    if array.size == 1:
        return array.reshape(())
    array = array.reshape((1,) * (5 - array.ndim) + array.shape)
    if array.shape[1:3] == (1, 1):
        return array.reshape(array.shape[0], 1, *array.shape[3:])
    array = np.broadcast_to(array, (array.shape[0], *full[1:3], *array.shape[3:]))
    return array.reshape(array.shape[0], full[1] * full[2], *array.shape[3:])
