"""Store small ONNX models, compressed, with inputs, outputs and an entry in ``models.json``; as a script, write the table of README.md."""

import collections
import gzip
import itertools
import json
import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime

DATA = pathlib.Path(__file__).parent
MODELS = DATA / 'models.json'
FOLDER = tempfile.TemporaryDirectory()
WORK = pathlib.Path(FOLDER.name)  # exporters write here
EXACT_LIMIT = 2e-5  # no input of a sign is closer to zero, where another order of summation could change the sign
CANDIDATES = 60  # inputs among which one with this property is looked for


def image(shape, seed, low=-2.0, high=2.0):
    """Return random numbers on a grid that are never zero and compress well."""
    steps = np.random.default_rng(seed).integers(0, 128, shape)
    return (low + (steps + 0.5) * (high - low) / 128).astype(np.float32)


def inputs_of(model):
    """Return the inputs of a model without the weights, which some exporters list as inputs too."""
    weights = {value.name for value in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def run(model, inputs, names=None):
    """Return named values, by default the outputs, of ONNX Runtime without optimizations, or of QONNX for models with its operators.

    Where the batch axis of the model is fixed to one, the images run one by one.
    """
    names = [value.name for value in model.graph.output] if names is None else names
    values = inputs_of(model)
    execute = run_qonnx if any(node.domain for node in model.graph.node) else run_onnxruntime
    if values[0].type.tensor_type.shape.dim[0].dim_value != 1:
        return execute(model, {value.name: array for value, array in zip(values, inputs, strict=True)}, names)
    feeds = [{value.name: array[i : i + 1] for value, array in zip(values, inputs, strict=True)} for i in range(len(inputs[0]))]
    return [np.concatenate(arrays) for arrays in zip(*(execute(model, feed, names) for feed in feeds), strict=True)]


def run_onnxruntime(model, feed, names):
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    extended = onnx.ModelProto.FromString(model.SerializeToString())
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(extended.SerializeToString(), options, providers=['CPUExecutionProvider'])
    return session.run(names, feed)


def run_qonnx(model, feed, names):
    from qonnx.core.modelwrapper import ModelWrapper  # installed only where such models are made
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    values = execute_onnx(ModelWrapper(model, make_deepcopy=True).transform(InferShapes()), feed, return_full_exec_context=True)
    return [values[name] for name in names]


STEPS_AT_ZERO = {'Sign', 'Greater', 'GreaterOrEqual', 'Less', 'LessOrEqual', 'BipolarQuant'}
STEPS_AT_HALVES = {'Round', 'Quant', 'IntQuant', 'QuantizeLinear'}


def distance_to_steps(model, inputs):
    """Return the smallest distance of a computed value to where a sign, a comparison with zero or a rounding jumps."""
    constants = {value.name: onnx.numpy_helper.to_array(value) for value in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == 'Constant' and node.attribute[0].name == 'value':
            constants[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    watched = {}
    for node in model.graph.node:
        comparison = node.op_type in STEPS_AT_ZERO and node.op_type not in ('Sign', 'BipolarQuant')
        if node.op_type in STEPS_AT_ZERO | STEPS_AT_HALVES and not (comparison and np.any(constants.get(node.input[1], 1))):
            scale = constants.get(node.input[1]) if node.op_type in STEPS_AT_HALVES - {'Round'} else None
            floors = any(item.name == 'rounding_mode' and item.s == b'FLOOR' for item in node.attribute)
            watched.setdefault(node.input[0], ('Floor' if floors else node.op_type, 1.0 if scale is None else scale))
        elif node.op_type == 'MultiThreshold':
            watched.setdefault(node.input[0], (node.op_type, constants[node.input[1]]))
    fixed = constants.keys() | {value.name for value in model.graph.input}
    watched = {name: step for name, step in watched.items() if name not in fixed}
    if not watched:
        return np.inf
    results = [dict(zip(watched, run(model, arrays, list(watched)), strict=True)) for arrays in (inputs, [a[::-1].copy() for a in inputs])]
    smallest = np.inf
    for name, (kind, scale) in watched.items():
        if np.array_equal(results[0][name], results[1][name]):
            continue  # does not depend on the input: weights
        if kind == 'MultiThreshold':
            smallest = min(smallest, np.abs(np.moveaxis(results[0][name], 1, -1)[..., None] - scale).min())
            continue
        values = results[0][name] / np.float64(scale)
        values = values + 0.5 if kind == 'Floor' else values
        values = np.abs(values - np.floor(values) - 0.5) if kind in STEPS_AT_HALVES | {'Floor'} else np.abs(values[values != 0])
        smallest = min(smallest, values.min(initial=np.inf))
    return smallest


def most_levels(array, axis=None):
    """Return the largest number of different values, up to rounding, in an array or in any slice along an axis."""
    slices = [array.ravel()] if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    gap = 1e-4 * np.abs(array).max()
    return max(1 + int((np.diff(np.sort(values)) > gap).sum()) for values in slices)


def count_layers(model, inputs):
    """Return how many layers have two levels of inputs and weights, and how many have few levels of both, but not two."""
    produced = {name: node for node in model.graph.node for name in node.output}
    constants = {value.name: onnx.numpy_helper.to_array(value) for value in model.graph.initializer}
    layers, varying = [], {value.name for value in inputs_of(model)}
    for node in model.graph.node:
        if varying.intersection(node.input):
            varying.update(node.output)
        if node.op_type in ('Conv', 'Gemm', 'MatMul') and node.input[1] not in varying:  # attention multiplies two values
            name = node.input[0]
            while name in produced and produced[name].op_type == 'Pad':
                name = produced[name].input[0]
            rows = node.op_type == 'Conv' or any(item.name == 'transB' and item.i for item in node.attribute)
            layers.append((name, node.input[1], 0 if rows else -1))
    names = {name for layer in layers for name in layer[:2]} - constants.keys() - {value.name for value in model.graph.input}
    values = constants | dict(zip(names, run(model, inputs, list(names)), strict=True))
    counts = collections.Counter()
    for name, weight, axis in layers:
        levels = (most_levels(values[name]), most_levels(values[weight], axis)) if name in values else (np.inf, 0)
        if max(levels) <= 4:
            counts['binary' if max(levels) == 2 else 'few levels'] += 1
    return counts


def operators(model):
    """Return how often each operator occurs, including the functions of the model."""
    nodes = itertools.chain(model.graph.node, *(function.node for function in model.functions))
    counts = collections.Counter((f'{node.domain}:' if node.domain not in ('', 'ai.onnx') else '') + node.op_type for node in nodes)
    return dict(sorted(counts.items()))


def choose_inputs(name, shapes, dtype=np.float32, **limits):
    """Return the first inputs from seeds whose values keep away from the jumps of signs, or the best of them."""
    model, best = onnx.load(WORK / f'{name}.onnx'), None
    for seed in range(CANDIDATES):
        inputs = [image(shape, [seed, index], **limits).astype(dtype) for index, shape in enumerate(shapes)]
        distance = distance_to_steps(model, inputs)
        if best is None or distance > best[0]:
            best = distance, inputs
        if distance > EXACT_LIMIT:
            break
    if best[0] <= EXACT_LIMIT:
        print(f'{name}: nearest to a jump is {best[0]:.1e}')
    return best[1]


def record(name, inputs, outputs, **facts):
    """Store the arrays of a model beside it and describe the model in `MODELS`.

    Parameters
    ----------
    name : str
        Name of the model, whose file ``NAME.onnx`` is in `WORK`.
    inputs : list of numpy.ndarray
        Inputs in the order of the graph, for a batch of two.
    outputs : list of numpy.ndarray
        Outputs of the framework that exported the model.
    **facts
        Description: ``source``, ``exporter``, ``form`` (how the graph expresses binarization) and ``binary`` (layers to pack) at least.
    """
    path = WORK / f'{name}.onnx'
    model = onnx.load(path)
    if {node.domain for node in model.graph.node} <= {item.domain for item in model.opset_import}:  # files of FINN leave domains out
        onnx.checker.check_model(str(path))
    actual = run(model, inputs)
    names = [value.name for value in model.graph.output]
    difference = max(float(np.abs(a - b).max()) for a, b in zip(actual, outputs, strict=True))
    assert difference < 1e-5, f'{name}: ONNX Runtime and {facts["source"]} differ by {difference}'
    assert all(np.ptp(array, axis=0).max() > 1e-3 for array in actual), f'{name}: an output does not depend on the input'
    counts = count_layers(model, inputs)
    expected = {'binary': facts['binary'], 'few levels': facts.get('low_bit', 0) + facts.get('ternary', 0)}
    assert all(counts[key] == number for key, number in expected.items()), f'{name}: {counts} instead of {expected}'
    arrays = {f'input.{value.name}': array for value, array in zip(inputs_of(model), inputs, strict=True)}
    arrays |= {f'graph.{key}': array for key, array in zip(names, actual, strict=True)}
    arrays |= {f'framework.{key}': array for key, array in zip(names, outputs, strict=True)}
    for part in WORK.glob(f'{name}.onnx*'):
        (DATA / f'{part.name}.gz').write_bytes(gzip.compress(part.read_bytes(), mtime=0))
    np.savez_compressed(DATA / f'{name}.npz', **arrays)
    entries = json.loads(MODELS.read_text()) if MODELS.exists() else {}
    opsets = {item.domain or 'ai.onnx': item.version for item in model.opset_import}
    entries[name] = facts | {'producer': f'{model.producer_name} {model.producer_version}'.strip(), 'opsets': opsets}
    entries[name] |= {'operators': operators(model)}
    MODELS.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + '\n')
    print(name, (DATA / f'{name}.onnx.gz').stat().st_size, f'{difference:.1e}', entries[name]['operators'])


def table():
    """Return the rows of the table of README.md."""
    rows = ['| model | source | exporter | opset | how the graph says it | binary layers | other |', '|' + ' --- |' * 7]
    for name, entry in json.loads(MODELS.read_text()).items():
        others = [f'{entry["ternary"]} ternary'] if entry.get('ternary') else []
        others += [f'{entry["low_bit"]} of few levels'] if entry.get('low_bit') else []
        others += [f'{entry["levels"]} with weights of few levels'] if entry.get('levels') else []
        others += [f'refuse: {entry["refuse"]}'] if 'refuse' in entry else []
        cells = [f'`{name}`', entry['source'], f'{entry["producer"]}: {entry["exporter"]}', entry['opsets']['ai.onnx'], entry['form']]
        rows.append(f'| {" | ".join(map(str, cells))} | {entry["binary"]} | {", ".join(others)} |')
    return '\n'.join(rows)


if __name__ == '__main__':
    readme = DATA / 'README.md'
    readme.write_text(readme.read_text().split('| model |')[0] + table() + '\n')
