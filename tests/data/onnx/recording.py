"""Write small ONNX models with an input, their outputs and an entry in ``models.json``; run as a script, print the table of README.md."""

import collections
import itertools
import json
import pathlib

import numpy as np
import onnx
import onnxruntime

DATA = pathlib.Path(__file__).parent
MODELS = DATA / 'models.json'
EXACT_LIMIT = 2e-5  # no input of a sign is closer to zero, where another order of summation could change the sign
CANDIDATES = 60  # inputs among which one with this property is looked for


def image(shape, seed, low=-2.0, high=2.0):
    """Return random numbers on a grid that are never zero and compress well."""
    steps = np.random.default_rng(seed).integers(0, 128, shape)
    return (low + (steps + 0.5) * (high - low) / 128).astype(np.float32)


def run(model, inputs):
    """Return the outputs of ONNX Runtime without optimizations, image by image where the batch axis of the model is fixed to one."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])
    names = [value.name for value in session.get_inputs()]
    if all(value.shape[0] == 1 for value in session.get_inputs()):
        parts = [session.run(None, dict(zip(names, (array[i : i + 1] for array in inputs), strict=True))) for i in range(len(inputs[0]))]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def distance_to_steps(path, inputs):
    """Return the smallest distance of a computed value to the point where ``Sign``, a comparison with zero or ``Round`` jumps."""
    model = onnx.load(path)
    constants = {value.name: onnx.numpy_helper.to_array(value) for value in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == 'Constant' and node.attribute[0].name == 'value':
            constants[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    watched = {}
    for node in model.graph.node:
        comparison = node.op_type in ('Greater', 'GreaterOrEqual', 'Less', 'LessOrEqual')
        if node.op_type in ('Sign', 'Round') or comparison and not np.any(constants.get(node.input[1], 1)):
            watched.setdefault(node.input[0], node.op_type)
    watched = {name: kind for name, kind in watched.items() if name not in constants}
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in watched if name not in known)
    names = [value.name for value in model.graph.output]
    other = [array[::-1].copy() for array in inputs]
    results = [dict(zip(names, run(model.SerializeToString(), arrays), strict=True)) for arrays in (inputs, other)]
    smallest = np.inf
    for name, kind in watched.items():
        values = results[0][name].astype(np.float64)
        if np.array_equal(values, results[1][name]):
            continue  # does not depend on the input: weights
        values = np.abs(values - np.floor(values) - 0.5) if kind == 'Round' else np.abs(values[values != 0])
        smallest = min(smallest, values.min(initial=np.inf))
    return smallest


def operators(model):
    """Return how often each operator occurs, including the functions of the model."""
    nodes = itertools.chain(model.graph.node, *(function.node for function in model.functions))
    counts = collections.Counter((f'{node.domain}:' if node.domain not in ('', 'ai.onnx') else '') + node.op_type for node in nodes)
    return dict(sorted(counts.items()))


def choose_inputs(path, shapes, **limits):
    """Return the first inputs from seeds whose values keep away from the jumps of signs, or the best of them."""
    best = None
    for seed in range(CANDIDATES):
        inputs = [image(shape, [seed, index], **limits) for index, shape in enumerate(shapes)]
        distance = distance_to_steps(path, inputs)
        if best is None or distance > best[0]:
            best = distance, inputs
        if distance > EXACT_LIMIT:
            break
    if best[0] <= EXACT_LIMIT:
        print(f'{path}: nearest to a jump is {best[0]:.1e}')
    return best[1]


def record(name, inputs, outputs, actual=None, **facts):
    """Store the arrays of a model beside it and describe the model in `MODELS`.

    Parameters
    ----------
    name : str
        Name of the model, whose file ``NAME.onnx`` exists already.
    inputs : list of numpy.ndarray
        Inputs in the order of the graph, for a batch of two.
    outputs : list of numpy.ndarray
        Outputs of the framework that exported the model.
    actual : list of numpy.ndarray, optional
        Outputs of the ONNX graph, by default of ONNX Runtime.
    **facts
        Description: ``source``, ``exporter``, ``form`` (how the graph expresses binarization) and ``binary`` (layers to pack) at least.
    """
    path = DATA / f'{name}.onnx'
    model = onnx.load(path)
    onnx.checker.check_model(str(path))
    actual = run(str(path), inputs) if actual is None else actual
    names = [value.name for value in model.graph.output]
    difference = max(float(np.abs(a - b).max()) for a, b in zip(actual, outputs, strict=True))
    assert difference < 1e-4, f'{name}: ONNX Runtime and {facts["source"]} differ by {difference}'
    assert all(np.ptp(array, axis=0).max() > 1e-3 for array in actual), f'{name}: an output does not depend on the input'
    arrays = {f'input.{value.name}': array for value, array in zip(model.graph.input, inputs, strict=True)}
    arrays |= {f'graph.{key}': array for key, array in zip(names, actual, strict=True)}
    arrays |= {f'framework.{key}': array for key, array in zip(names, outputs, strict=True)}
    np.savez_compressed(DATA / f'{name}.npz', **arrays)
    entries = json.loads(MODELS.read_text()) if MODELS.exists() else {}
    opsets = {item.domain or 'ai.onnx': item.version for item in model.opset_import}
    entries[name] = facts | {'producer': f'{model.producer_name} {model.producer_version}'.strip(), 'opsets': opsets}
    entries[name] |= {'operators': operators(model)}
    MODELS.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + '\n')
    print(name, path.stat().st_size, f'{difference:.1e}', entries[name]['operators'])


def table():
    """Return the rows of the table of README.md."""
    rows = ['| model | source | exporter | opset | how the graph says it | binary layers |', '| --- | --- | --- | --- | --- | --- |']
    for name, entry in json.loads(MODELS.read_text()).items():
        opset = entry['opsets']['ai.onnx']
        rows.append(f'| `{name}` | {entry["source"]} | {entry["exporter"]} | {opset} | {entry["form"]} | {entry["binary"]} |')
    return '\n'.join(rows)


if __name__ == '__main__':
    print(table())
