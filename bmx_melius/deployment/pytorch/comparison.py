"""Comparison of packed networks with the modules that they were made of.

A value close to a threshold gets one sign or the other, depending on the order of a summation, and a network of binary layers amplifies
that. So where the results differ, the module itself is computed in float64, and with inputs or constants changed by rounding errors: if its
own results change, too, the input decides nothing, and another one is drawn. A difference on an input where the module is stable is an
error.
"""

import copy
import dataclasses

import numpy as np

from ...errors import UserError, counted
from ..onnx.model import import_onnx_package
from .fake_quantization import in_plain_operators
from .modules import call
from .package import import_torch_package

TOLERANCE = 1e-4  # of the largest magnitude of an output: rounding errors of the float layers of a deep network
INPUTS = 4  # on which the results must agree
_MOST_INPUTS = 16
_OFFSETS = (0.0, -0.5, 0.5)  # of means, in standard deviations
_CHANGES = 8  # of inputs and constants by rounding errors, for each input on which the results differ
_ROUNDING = 1e-6  # relative to the standard deviation of the input, or to a constant


@dataclasses.dataclass
class Comparison:
    """Result of a comparison with the module.

    Attributes
    ----------
    module : str
        Its class.
    inputs : int
        Number of random inputs on which the outputs agree.
    undecided : int
        Number of those on which they differ, and outputs of the module as well if its inputs or constants change by rounding errors.
    zeros : int
        Number of the former on which they agree if signs of exact zeros are 1 in the module, as in the packed network.
    largest_deviation : float
        Largest difference where they agree, as a fraction of the largest magnitude of the output.
    exporter : str
        ``torchscript`` or ``dynamo``.
    version : str
        Of PyTorch.
    """

    module: str
    inputs: int = 0
    undecided: int = 0
    zeros: int = 0
    largest_deviation: float = 0.0
    exporter: str = ''
    version: str = ''

    def __str__(self):
        parts = []
        if self.inputs:
            zeros = f', for {self.zeros} of them if signs of exact zeros are 1 there, too' if self.zeros else ''
            parts.append(
                f'outputs for {counted(self.inputs, "random input")} within {self.largest_deviation:.1e} of the largest one{zeros}'
            )
        if self.undecided:
            parts.append(
                f'{counted(self.undecided, "input")} where rounding errors decide signs: outputs of {self.module} itself change in '
                f'float64, or if the input or constants change by {_ROUNDING:g}'
            )
        if self.zeros:
            parts.append(
                f'{counted(self.zeros, "input")} where {self.module} takes signs of exact zeros, which are 1 in the packed network'
            )
        verified = 'verified' if self.inputs else 'not verified'
        return f'{verified} with {self.module} in PyTorch {self.version} ({self.exporter}): {"; ".join(parts)}'


def compare(module, inputs, session, outputs, model_file, zero_is_positive):
    """Compare a packed network with a module on random inputs, and the example if it is not constant.

    Parameters
    ----------
    module : torch.nn.Module
        As `modules.for_inference` returns it.
    inputs : dict of str to torch.Tensor
        The example, with the names of the inputs.
    session : bmx_melius.Session
    outputs : list of str
        Names of the values of the ONNX model that the packed network returns; what the model computes of them is computed by ONNX Runtime.
    model_file : str
        The ONNX model of the module.
    zero_is_positive : bool
        Whether signs of 0 are 1 in the packed network.

    Returns
    -------
    Comparison

    Raises
    ------
    UserError
        If the results differ on an input where those of the module do not depend on rounding errors.
    """
    torch = import_torch_package()
    finish = _rest_of_model(model_file, outputs)
    found = Comparison(type(module).__name__, version=torch.__version__)
    for drawn in _drawn(torch, inputs):
        if found.inputs == INPUTS:
            break
        expected = _outputs(module, drawn.values())
        results = session(*(drawn[name].numpy().astype(np.float32) for name in session.input_names))
        results = finish(results if isinstance(results, list) else [results], drawn)
        deviation, takes_zeros = _deviation(expected, results), False
        if deviation > TOLERANCE and zero_is_positive:
            with _signs_of_zero(torch, drawn.values()):
                changed = _outputs(module, drawn.values())
            takes_zeros = _deviation(expected, changed) > 0
            deviation = _deviation(changed, results)
        if deviation <= TOLERANCE:
            found.inputs += 1
            found.zeros += takes_zeros
            found.largest_deviation = max(found.largest_deviation, deviation)
        elif _is_unstable(torch, module, drawn, expected):
            found.undecided += 1
        else:
            raise UserError(
                f'the packed network differs from {type(module).__name__} by {deviation:.1e} of the largest output on a random input where '
                'outputs of the module do not depend on rounding errors: its forward may compute something else for other numbers '
                '(if x.max() > 1: ...), which no exporter records'
            )
    return found


def _outputs(module, inputs):
    """Return the outputs of a module as a list of arrays."""
    return [x.numpy() for x in call(module, list(inputs)).values()]


def _drawn(torch, inputs):
    """Yield inputs: the example where it is not constant, then random ones with its standard deviation, about its mean."""
    generator = torch.Generator().manual_seed(1)
    if any(float(x.float().std(unbiased=False)) > 0 for x in inputs.values()):
        yield inputs
    for number in range(_MOST_INPUTS):
        drawn, offset = {}, _OFFSETS[number % len(_OFFSETS)]
        for name, x in inputs.items():
            if x.is_floating_point():
                drawn[name] = _like(torch, x, generator) + (float(x.mean()) + offset * _spread(x))
            else:  # its own numbers in another order
                drawn[name] = x.reshape(-1)[torch.randperm(x.numel(), generator=generator)].reshape(x.shape)
        yield drawn


def _like(torch, x, generator):
    """Return normally distributed numbers with the shape and the spread of a tensor."""
    return torch.randn(x.shape, generator=generator) * _spread(x)


def _spread(x):
    """Return the standard deviation of a tensor, or 1 if it is constant."""
    return float(x.std(unbiased=False)) or 1.0


def _deviation(expected, results):
    """Return the largest difference of two lists of arrays, each relative to the largest magnitude that is expected of it."""
    largest = 0.0
    for a, b in zip(expected, results):
        if a.size != b.size:
            raise UserError(f'the packed network returns {b.shape}, the module {a.shape}')
        difference = np.abs(a.reshape(-1).astype(np.float64) - b.reshape(-1)).max(initial=0)
        largest = max(largest, float(difference / max(np.abs(a).max(initial=0), np.finfo(np.float32).tiny)))
    return largest if np.isfinite(largest) else np.inf


def _is_unstable(torch, module, inputs, expected):
    """Return whether other roundings change the outputs of a module on inputs by more than the tolerance."""
    generator, plain = torch.Generator().manual_seed(2), in_plain_operators(module)
    if plain is not module and _deviation(expected, _outputs(plain, inputs.values())) > TOLERANCE:
        plain = module  # it does not compute the same, which is no rounding error
    other = copy.deepcopy(plain)
    for _ in range(_CHANGES):
        changed = [x + _ROUNDING * _like(torch, x, generator) if x.is_floating_point() else x for x in inputs.values()]
        for constant, original in zip(_constants(other), _constants(plain)):  # inputs that are rounded to few levels hide their changes
            constant.data = original * (1 + _ROUNDING * torch.randn(original.shape, generator=generator))
        if any(_deviation(expected, found) > TOLERANCE for found in (_outputs(module, changed), _outputs(other, inputs.values()))):
            return True
    try:
        with _conversions_to_float64(torch):
            doubled = _outputs(copy.deepcopy(plain).double(), [x.double() if x.is_floating_point() else x for x in inputs.values()])
    except UserError:  # a module that makes float32 tensors without a conversion
        return False
    return _deviation(expected, doubled) > TOLERANCE


def _constants(module):
    return [each for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()]


def _conversions_to_float64(torch):
    """Return a context in which conversions to float32, such as ``(x > 0).float()``, are conversions to float64."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class ConversionsToFloat64(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if kwargs.get('dtype') is torch.float32:
                kwargs['dtype'] = torch.float64
            return function(*args, **kwargs)

    return ConversionsToFloat64()


def _signs_of_zero(torch, inputs):
    """Return a context in which signs of what depends on `inputs` are 1 for 0. Signs of weights stay as they are."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    aten = torch.ops.aten
    kept = {id(x): x for x in inputs}  # tensors that depend on the inputs; an id is theirs as long as they are kept

    class SignsOfZero(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            varies = any(id(value) in kept for value in tree_flatten((args, kwargs or {}))[0])
            is_sign = varies and function.overloadpacket in (aten.sign, aten.sign_, aten.sgn, aten.sgn_)
            zeros = (args[0] == 0) if is_sign else None
            result = function(*args, **(kwargs or {}))
            if is_sign:
                result.masked_fill_(zeros, 1)
            if varies:
                kept.update((id(value), value) for value in tree_flatten(result)[0] if isinstance(value, torch.Tensor))
            return result

    return SignsOfZero()


def _rest_of_model(path, names):
    """Return the function from values of an ONNX model with these names, a list of arrays, and its inputs, tensors, to its outputs."""
    onnx, onnxruntime = import_onnx_package()
    whole = onnx.load(path)
    wanted = [output.name for output in whole.graph.output]
    if wanted == names:
        return lambda values, _: values
    needed, nodes = set(wanted) - set(names), []
    for node in reversed(whole.graph.node):
        if needed.intersection(node.output):
            needed.update(name for name in node.input if name not in names)
            nodes.append(node)
    read, missing = {name for node in nodes for name in node.input}, [name for name in wanted if name not in names]
    described = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in dict.fromkeys(names)]
    rest = onnx.helper.make_graph(
        nodes[::-1],
        'rest',
        [entry for entry in (*described, *whole.graph.input) if entry.name in read],
        [output for output in whole.graph.output if output.name in missing],
        [tensor for tensor in whole.graph.initializer if tensor.name in read],
    )
    model = onnx.helper.make_model(rest, ir_version=whole.ir_version, opset_imports=whole.opset_import, functions=whole.functions)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])
    fed = [entry.name for entry in session.get_inputs()]

    def finished(values, inputs):
        known = {**{name: x.numpy() for name, x in inputs.items()}, **dict(zip(names, values))}
        known.update(zip(missing, session.run(missing, {name: known[name] for name in fed})))
        return [known[name] for name in wanted]

    return finished
