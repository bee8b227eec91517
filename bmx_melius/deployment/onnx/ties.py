"""Models whose signs are never 0: where a sign lies between its two levels, as that of 0 does in PyTorch, it becomes the higher one."""

import numpy as np

from .model import import_onnx_package


def without_ties(evaluator, steps):
    """Return an `Evaluator` of the model in which some values have two levels only.

    Parameters
    ----------
    evaluator : Evaluator
    steps : dict of str to recognition.Step
        Name of a value -> its step, of two levels.
    """
    onnx, _ = import_onnx_package()
    graph = onnx.GraphProto()  # of the new nodes and initializers
    for original in evaluator.model.proto.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        tied = [output for output in node.output if output in steps]
        for position, output in enumerate(node.output):
            if output in steps:
                node.output[position] = f'{output}_tied'
        graph.node.append(node)
        for name in tied:
            by_channel = (1, -1, *(1,) * (len(evaluator.shape(name)) - 2))
            lower, upper = (level.astype(np.float32).reshape(by_channel) for level in steps[name].levels)
            arrays = {'limit': lower * np.float32(0.75) + upper * np.float32(0.25), 'lower': lower, 'upper': upper}
            names = {key: f'{name}_{key}' for key in arrays}
            graph.initializer.extend(onnx.numpy_helper.from_array(array, names[key]) for key, array in arrays.items())
            graph.node.append(onnx.helper.make_node('Greater', [f'{name}_tied', names['limit']], [f'{name}_above'], f'{name}_above'))
            chosen = [f'{name}_above', names['upper'], names['lower']]
            graph.node.append(onnx.helper.make_node('Where', chosen, [name], f'{name}_untied'))
    return evaluator.with_nodes(graph.node, graph.initializer)


def share_of_ties(evaluator, steps):
    """Return the name of the value that is most often between its two levels in a sample, and the share of its elements that are."""
    shares = {}
    for name, step in steps.items():
        by_channel = (1, -1, *(1,) * (len(evaluator.shape(name)) - 2))
        lower, upper = (level.reshape(by_channel) for level in step.levels)
        shares[name] = float((np.abs(evaluator.sampled[name] - (lower + upper) / 2) < (upper - lower) / 4).mean())
    return max(shares.items(), key=lambda item: item[1])
