"""Modules of PyTorch for inference: a copy without what training adds, its inputs, and its outputs by name."""

import contextlib
import copy
import inspect

import numpy as np

from ...errors import UserError
from .package import import_torch_package, reason


def for_inference(module):
    """Return a copy of a module: on the CPU, in float32 and in evaluation mode, without wrappers for training.

    The module itself stays as it is, also if its forward pass changes its parameters or buffers.

    Raises
    ------
    UserError
        If it is not a module, or cannot be copied.
    """
    torch = import_torch_package()
    require_module(module, 'import_torch')
    module = without_wrappers(module)
    derived = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf  # results that a forward pass has kept, which cannot be copied
    }
    try:
        return copy.deepcopy(module, derived).cpu().float().eval()
    except Exception as error:  # of whatever the module contains
        raise UserError(f'{type(module).__name__} cannot be copied, which keeps it as it is: {reason(error)}') from error


def require_module(value, given_by):
    """Raise `UserError` if a value, which a function of this name takes or returns, is not a module."""
    torch = import_torch_package()
    if not isinstance(value, torch.nn.Module):
        raise UserError(f'{given_by}: {type(value).__name__} is not a network of PyTorch, a torch.nn.Module')


def without_wrappers(module):
    """Return the network in `nn.DataParallel`, `DistributedDataParallel` and `torch.compile`."""
    torch = import_torch_package()
    parallel = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while True:
        inner = module.module if isinstance(module, parallel) else getattr(module, '_orig_mod', None)  # of torch.compile
        if not isinstance(inner, torch.nn.Module):
            return module
        module = inner


@contextlib.contextmanager
def inference():
    """Within the block no gradients are recorded; what PyTorch draws at random in it does not change what it draws afterwards."""
    torch = import_torch_package()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def example_inputs(module, example):
    """Return the inputs of a module as a dict of names to tensors on the CPU.

    Parameters
    ----------
    module : torch.nn.Module
    example : torch.Tensor, numpy.ndarray, shape, or list, tuple or dict of them
        One input or, in a dict by the names of its parameters in ``forward``, several. A shape is a tuple of int.

    Raises
    ------
    UserError
        If it is none of these, or `module` has other inputs.
    """
    torch = import_torch_package()
    several = isinstance(example, dict) or isinstance(example, (list, tuple)) and not _is_shape(example)
    given = example if several else [example]
    tensors = {name: _tensor(torch, value) for name, value in (given.items() if isinstance(given, dict) else enumerate(given))}
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(**tensors) if isinstance(given, dict) else signature.bind(*tensors.values())
    except TypeError as error:
        raise UserError(f'the example does not fit {type(module).__name__}.forward{signature}: {error}') from error
    inputs = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            inputs.update((f'{name}{number}', each) for number, each in enumerate(value))
        elif signature.parameters[name].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            raise UserError(f'{type(module).__name__}.forward takes {name} by keyword only: write a module whose forward takes its inputs')
        else:
            inputs[name] = value
    return inputs


def _is_shape(example):
    return all(isinstance(size, (int, np.integer)) and not isinstance(size, bool) for size in example)


def _tensor(torch, value):
    """Return an input as a tensor: floating-point numbers as float32; of a shape, normally distributed numbers."""
    if isinstance(value, (list, tuple)) and value and _is_shape(value):
        if min(value) < 1:
            raise UserError(f'the shape {tuple(value)} of an input has a size below 1')
        return torch.randn(*value, generator=torch.Generator().manual_seed(0))
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.array(value))
    if not isinstance(value, torch.Tensor):
        raise UserError(f'the example is {type(value).__name__}: give a tensor, an array or a shape, or several of them')
    value = value.detach().cpu()
    return value.float() if value.is_floating_point() else value


def call(module, inputs):
    """Return the outputs of a module for inputs, a list of tensors: a dict of names to tensors.

    The names are keys of a dict, or ``output`` with a number.

    Raises
    ------
    UserError
        If its forward pass fails, or returns something else than tensors.
    """
    torch = import_torch_package()
    try:
        result = module(*inputs)
    except Exception as error:  # whatever the module raises
        shapes = ', '.join(str(tuple(x.shape)) for x in inputs)
        raise UserError(f'{type(module).__name__} fails on an input of {shapes}: {reason(error)}') from error
    if isinstance(result, torch.Tensor):
        return {'output': result}
    if isinstance(result, (list, tuple)):
        result = {f'output{number}': value for number, value in enumerate(result)}
    if not isinstance(result, dict):
        raise UserError(f'{type(module).__name__} returns {type(result).__name__}: its forward must return a tensor, or several of them')
    tensors = {str(name): value for name, value in result.items() if value is not None}
    wrong = next((name for name, value in tensors.items() if not isinstance(value, torch.Tensor)), None)
    if wrong is not None or not tensors:
        what = f'{type(tensors[wrong]).__name__} as {wrong}' if tensors else 'nothing'
        raise UserError(f'{type(module).__name__} returns {what}: its forward must return a tensor, or a tuple, list or dict of tensors')
    return tensors
