"""The Examples of public names run and give what they show; their signatures name the arguments and the types that they take."""

import doctest
import importlib
import inspect
import pkgutil
import unittest.mock

import mxnet as mx
import pytest
from mxnet.gluon import nn

import bmx_melius
import model_zoo
from bmx_melius.nn import channelwise, methods, quantizers
from bmx_melius.nn.methods import group_net, lq_net

PUBLIC = {f'{package.__name__}.{name}': getattr(package, name) for package in (bmx_melius, model_zoo) for name in package.__all__}
PUBLIC['bmx_melius.nn.quantizers.quantize'] = quantizers.quantize
METHODS = {  # of public classes of this project, which also have examples or need none: what MXNet calls, and one-line accessors
    f'{name}.{method}': value
    for name, public in PUBLIC.items()
    if inspect.isclass(public)
    for method, value in vars(public).items()
    if inspect.isfunction(value) and not method.startswith('_') and not hasattr(public.__mro__[1], method)
}
OF_METHODS = {  # layers and functions of other binary methods, which the package does not list: with a docstring for users
    f'{module.__name__}.{name}': value
    for module in (importlib.import_module(found.name) for found in pkgutil.iter_modules(methods.__path__, 'bmx_melius.nn.methods.'))
    for name, value in vars(module).items()
    if inspect.isclass(value) and value.__module__ == module.__name__ and name.endswith(('Conv2D', 'RPReLU', 'LQActivation'))
}
EXAMPLES = {**PUBLIC, **METHODS, **OF_METHODS}
EXAMPLES.update({f'bmx_melius.nn.channelwise.{name}': getattr(channelwise, name) for name in ('Scale', 'Shift', 'PReLU')})
EXAMPLES.update({f'bmx_melius.nn.methods.group_net.{name}': getattr(group_net, name) for name in ('GroupSum', 'SoftGate')})
EXAMPLES['bmx_melius.nn.methods.lq_net.update_bases'] = lq_net.update_bases

CALLABLE = [name for name, value in PUBLIC.items() if callable(value) and value is not bmx_melius.UserError]
WITH_TORCH = {'bmx_melius.import_torch'}  # its example needs PyTorch, which this environment lacks: tests/deployment/pytorch
FILES = {'model_zoo.from_larq': 'meliusnet22_file', 'model_zoo.load_larq_parameters': 'meliusnet22_file'}  # fixtures

MXNETS = {
    name for kind in (nn.Conv2D, nn.Dense, mx.optimizer.Optimizer, nn.HybridSequential) for name in inspect.signature(kind).parameters
}
VARIABLE = {'bmx_melius.check': ['inputs'], 'model_zoo.get_model': ['kwargs'], 'model_zoo.from_larq': ['kwargs']}


def has_examples(value):
    return '\nExamples\n--------\n' in (inspect.getdoc(value) or '')


@pytest.mark.parametrize('name', [name for name, value in EXAMPLES.items() if has_examples(value) and name not in WITH_TORCH])
def test_examples_give_what_they_show(name, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if name in FILES:
        file = request.getfixturevalue(FILES[name])
        (tmp_path / file.name).symlink_to(file)
    (examples,) = doctest.DocTestFinder(recurse=False).find(EXAMPLES[name], name, globs={})
    report = []
    with unittest.mock.patch.dict(quantizers.QUANTIZERS):  # examples may register one
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert result.attempted and not result.failed, ''.join(report)


@pytest.mark.parametrize('name', [*CALLABLE, *sorted(set(EXAMPLES) - set(PUBLIC) - set(METHODS))])
def test_public_functions_and_classes_have_examples(name):
    assert has_examples(EXAMPLES[name])


@pytest.mark.parametrize('name', METHODS)
def test_methods_of_public_classes_have_types(name):
    signature = inspect.signature(METHODS[name])
    arguments = [argument for argument in signature.parameters.values() if argument.name != 'self']
    if name.rpartition('.')[2] not in ('hybrid_forward', 'forward'):  # which MXNet calls
        assert signature.return_annotation is not signature.empty
        assert all(argument.annotation is not argument.empty for argument in arguments)


@pytest.mark.parametrize('name', CALLABLE)
def test_arguments_have_names_and_types_except_those_that_mxnet_defines(name):
    arguments = inspect.signature(PUBLIC[name]).parameters.values()
    assert {argument.name for argument in arguments if argument.annotation is argument.empty} <= MXNETS
    variable = [argument.name for argument in arguments if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
    assert variable == VARIABLE.get(name, [])


@pytest.mark.parametrize('package', [bmx_melius, model_zoo])
def test_a_package_lists_all_its_public_names(package):
    assert sorted(set(package.__all__)) == sorted(package.__all__) and all(hasattr(package, name) for name in package.__all__)
    offered = {name for name in dir(package) if not name.startswith('_') and not inspect.ismodule(getattr(package, name))}
    assert offered == {name for name in package.__all__ if not name.startswith('_')}
