"""Models in which values have exactly the levels of their steps, by the comparisons of these.

Where a sign lies between its two levels, as the sign of 0 in PyTorch, it becomes the higher level. Sums of integers are compared without
rounding errors (`exact_sums`).
"""

import numpy as np

from ...errors import UserError
from .model import import_onnx_package


class TiesError(UserError):
    """Signs that are 0 where their argument is 0, without the permission to take 1 there."""


def with_comparisons(evaluator, steps):
    """Return an `Evaluator` of the model in which some values are computed by the comparisons of their steps.

    Parameters
    ----------
    evaluator : Evaluator
    steps : dict of str to recognition.StepFunction
        Name of a value -> its step.
    """
    onnx, _ = import_onnx_package()
    graph = onnx.GraphProto()  # of the new nodes and initializers
    ending = '_'
    while any(name.endswith(ending) for name in evaluator.producers):
        ending += '_'  # of new names
    for original in evaluator.model.proto.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        compared = [output for output in node.output if output in steps]
        for position, output in enumerate(node.output):
            if output in steps:
                node.output[position] = f'{output}{ending}'
        graph.node.append(node)
        for name in compared:
            _add_comparisons(onnx, graph, name, steps[name], evaluator.sampled[name], ending)
    return evaluator.with_nodes(graph.node, graph.initializer)


def _add_comparisons(onnx, graph, name, step, sampled, ending):
    """Add the nodes that compute a value from the source of its step: where(not (x < threshold) xor flip, level, the one below)."""
    by_channel, make = (1, -1, *(1,) * (sampled.ndim - 2)), onnx.helper.make_node

    def constant(array, kind):
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array.reshape(by_channel)), f'{name}_{kind}{ending}'))
        return graph.initializer[-1].name

    levels = [constant(level.astype(np.float32), f'level{number}') for number, level in enumerate(step.levels)]
    last = name if sampled.dtype == np.float32 else f'{name}_levels{ending}'
    chosen = levels[0]
    for number, (threshold, flip) in enumerate(step.comparisons):
        below, above = f'{name}_below{number}{ending}', f'{name}_above{number}{ending}'
        graph.node.append(make('Less', [step.source, constant(threshold, f'threshold{number}')], [below], below))
        graph.node.append(make('Xor', [below, constant(~flip, f'rising{number}')], [above], above))
        output = last if number == len(step.comparisons) - 1 else f'{name}_chosen{number}{ending}'
        graph.node.append(make('Where', [above, levels[number + 1], chosen], [output], f'{name}_choice{number}{ending}'))
        chosen = output
    if last != name:
        graph.node.append(make('Cast', [last], [name], f'{name}_cast{ending}', to=onnx.TensorProto.BOOL))


def share_of_ties(evaluator, steps):
    """Return the name of the value that is most often between its two levels in a sample, and the share of its elements that are."""
    shares = {}
    for name, step in steps.items():
        by_channel = (1, -1, *(1,) * (len(evaluator.shape(name)) - 2))
        lower, upper = (level.reshape(by_channel) for level in step.levels)
        shares[name] = float((np.abs(evaluator.sampled[name] - (lower + upper) / 2) < (upper - lower) / 4).mean())
    return max(shares.items(), key=lambda item: item[1])
