"""The Examples of public names run and give what they show; their signatures name the arguments and the types that they take."""

import doctest
import inspect

import mxnet as mx
import pytest
from mxnet.gluon import nn

import bmx_melius
import model_zoo
from bmx_melius import quantizers

PUBLIC = {f'{package.__name__}.{name}': getattr(package, name) for package in (bmx_melius, model_zoo) for name in package.__all__}
PUBLIC['bmx_melius.quantizers.quantize'] = quantizers.quantize

LAYERS = ('bmx_melius.layers', 'bmx_melius.channels', 'bmx_melius.methods.xnor_net')
BUILDING = [name for name, value in PUBLIC.items() if getattr(value, '__module__', None) in LAYERS]
BUILDING += ['bmx_melius.RAdam', 'bmx_melius.check', 'bmx_melius.summary', 'bmx_melius.quantizers.quantize']
BUILDING += ['model_zoo.get_model', 'model_zoo.get_model_list']

MXNETS = {
    name for kind in (nn.Conv2D, nn.Dense, mx.optimizer.Optimizer, nn.HybridSequential) for name in inspect.signature(kind).parameters
}
VARIABLE = {'bmx_melius.check': ['inputs'], 'model_zoo.get_model': ['kwargs'], 'bmx_melius.GroupedConv2D': ['kwargs']}


def has_examples(value):
    return '\nExamples\n--------\n' in (inspect.getdoc(value) or '')


@pytest.mark.parametrize('name', [name for name, value in PUBLIC.items() if has_examples(value)])
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (examples,) = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, globs={})
    report = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert result.attempted and not result.failed, ''.join(report)


@pytest.mark.parametrize('name', BUILDING)
def test_what_networks_are_built_and_looked_at_with_has_examples(name):
    assert has_examples(PUBLIC[name])


@pytest.mark.parametrize('name', BUILDING)
def test_arguments_are_named_and_have_types_unless_they_are_mxnets(name):
    arguments = inspect.signature(PUBLIC[name]).parameters.values()
    assert {argument.name for argument in arguments if argument.annotation is argument.empty} <= MXNETS
    variable = [argument.name for argument in arguments if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
    assert variable == VARIABLE.get(name, [])


@pytest.mark.parametrize('package', [bmx_melius, model_zoo])
def test_a_package_lists_what_it_offers(package):
    assert sorted(set(package.__all__)) == sorted(package.__all__) and all(hasattr(package, name) for name in package.__all__)
    offered = {name for name, value in vars(package).items() if not name.startswith('_') and not inspect.ismodule(value)}
    assert offered == {name for name in package.__all__ if not name.startswith('_')}
