"""ONNX models of modules, by the exporters of PyTorch."""

import contextlib
import inspect
import logging
import os
import sys
import warnings

from ...errors import UserError
from .modules import call
from .package import import_torch_package, reason

OPSET = 17  # of the TorchScript exporter; the newer one writes 18 and later
TORCHSCRIPT, DYNAMO = 'torchscript', 'dynamo'
EXPORTERS = (TORCHSCRIPT, DYNAMO)
_SINCE_2_5 = 'external_data'  # argument of the newer exporter, whose former one wrote other models


def available_exporters(exporter):
    """Return the exporters to try in this order: those that the installed PyTorch has, or one that is given.

    Raises
    ------
    UserError
        If it does not have the given one.
    """
    torch = import_torch_package()
    present = EXPORTERS if _SINCE_2_5 in inspect.signature(torch.onnx.export).parameters else EXPORTERS[:1]
    if exporter is None:
        return present
    if exporter not in present:
        raise UserError(f'PyTorch {torch.__version__} has no exporter {exporter!r}; it has {" and ".join(present)}')
    return (exporter,)


def export(module, inputs, exporter, path):
    """Write an ONNX model of a module, with its weights in the file.

    Parameters
    ----------
    module : torch.nn.Module
        As `modules.for_inference` returns it. If it returns several tensors, each is an output of the model.
    inputs : dict of str to torch.Tensor
        Inputs with their names, which fix the shapes.
    exporter : str
        ``torchscript``, which records the operators of one forward pass, or ``dynamo``, which translates the forward pass.
    path : str

    Raises
    ------
    UserError
        If the exporter fails.
    """
    torch = import_torch_package()
    outputs = call(module, list(inputs.values()))
    options = {'input_names': list(inputs), 'output_names': _output_names(outputs, inputs)}
    if _SINCE_2_5 in inspect.signature(torch.onnx.export).parameters:
        options['dynamo'] = exporter == DYNAMO
    if exporter == DYNAMO:
        options.update(external_data=False, verbose=False)
    else:
        options['opset_version'] = OPSET
    source = module if set(outputs) == {'output'} else _Tensors(torch, module)
    try:
        with _quiet():
            torch.onnx.export(source, tuple(inputs.values()), path, **options)
    except Exception as error:  # exporters raise errors of all parts of PyTorch
        raise UserError(f'{type(module).__name__} cannot be exported: {reason(error)}') from error


def _output_names(outputs, inputs):
    """Return names of the outputs that are not names of inputs."""
    names = []
    for name in outputs:
        while name in inputs or name in names:
            name += '_'
        names.append(name)
    return names


def _Tensors(torch, module):  # noqa: N802  a class that needs the package
    """Return a module that returns a tuple of the tensors that another one returns in a tuple, list or dict."""

    class Tensors(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = module

        def forward(self, *inputs):
            result = self.network(*inputs)
            return tuple(value for value in (result.values() if isinstance(result, dict) else result) if value is not None)

    return Tensors().eval()


@contextlib.contextmanager
def _quiet():
    """Within the block, what exporters print and warn of is not shown: the comparison with the module finds what matters.

    C++ prints whole graphs to the descriptors of standard output and standard error, so these are replaced.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    logger = logging.getLogger('torch.onnx')
    level, kept = logger.level, [os.dup(descriptor) for descriptor in (1, 2)]
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), open(os.devnull, 'w') as nowhere:
            warnings.simplefilter('ignore')
            for descriptor in (1, 2):
                os.dup2(nowhere.fileno(), descriptor)
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
    finally:
        for descriptor, own in zip((1, 2), kept):
            os.dup2(own, descriptor)
            os.close(own)
        logger.setLevel(level)
