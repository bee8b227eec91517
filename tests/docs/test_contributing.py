"""The recipes of CONTRIBUTING.md in Python: networks, studies, protocols and quantizers are added as the text says, and used."""

import pathlib
import re

import pytest
from support.recipes import BEGIN, COPIED, SECTIONS, Project, code_of, file_of


@pytest.fixture()
def project(tmp_path):
    return Project(tmp_path, COPIED, unneeded=['csrc'])


USE_NETWORK = (
    BEGIN
    + """
import gluoncv
from bmx_melius.__main__ import main
import model_zoo
from bmx_melius.training.options.parsing import parse_options
from model_zoo import get_model, get_model_list

(name,) = sys.argv[1:]
assert name in get_model_list()
assert type(gluoncv.model_zoo.get_model(name)) is type(get_model(name))
assert main(['summary', name]) == 0
assert parse_options(['--model', name, '--dataset', 'digits', '--save-dir', 'new'], model_zoo).model == name

net = get_model(name, classes=5, clip_threshold=1)
net.initialize(mx.init.Xavier())
x = mx.nd.random.normal(shape=(4, 3, 64, 64))
assert net(x).shape == (4, 5)
assert bmx.summary(net, x.shape).bops > 0
assert bmx.check(net, x).problems == []
net.hybridize()
net(x)
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 3, 64, 64), verify=True)
assert bmx.Session('packed')(x.asnumpy()).shape == (4, 5)
assert passed(name + ' and same_logits', 'tests/zoo/test_zoo.py') == 1
"""
)


def test_a_row_as_in_the_recipe_adds_a_network(project):
    row, *_ = code_of('Adding a network')
    project.add_rows(file_of('Adding a network', row), row)
    project.run(USE_NETWORK, 'meliusnet25')


def test_a_file_as_in_the_recipe_adds_a_family_of_networks(project):
    _, family, line = code_of('Adding a network')
    project.append(file_of('Adding a network', family), family)
    project.append(file_of('Adding a network', line), line)
    project.run(USE_NETWORK, 'plainnet3')


USE_STUDY = (
    BEGIN
    + """
import run

(name,) = sys.argv[1:]
assert run.main(['--list']) == 0
assert run.main([name, '--dry-run']) == 0
assert passed('every_command_of_a_study and ' + name, 'tests/training/test_experiments.py') == 2
"""
)


def test_a_file_as_in_the_recipe_adds_a_study(project):
    (study,) = code_of('Adding a study', 'yaml')
    path = file_of('Adding a study', study)
    project.append(path, study)
    project.run(USE_STUDY, pathlib.Path(path).stem)


USE_PROTOCOL = (
    BEGIN
    + """

import model_zoo
from bmx_melius.training.options.parsing import parse_options

(name,) = sys.argv[1:]
parsed = parse_options(['--preset', name, '--model', 'meliusnet22', '--save-dir', 'new'], model_zoo)
assert parsed.num_epochs == 240 and parsed.lr == 0.002
chosen = f'values_of_the_paper and {name} or table_of_the_documentation or every_preset_is_checked'
assert passed(chosen, 'tests/training/test_presets.py') == 3
"""
)


def test_a_row_as_in_the_recipe_adds_a_protocol(project):
    section = 'Adding a protocol'
    preset, paper = code_of(section)
    (line,) = code_of(section, 'markdown')
    project.add_rows(file_of(section, preset), preset)
    project.add_rows('tests/training/test_presets.py', paper)
    table = project.folder / 'docs' / 'training.md'
    assert all(f'`{path}`' in SECTIONS[section] for path in ('tests/training/test_presets.py', 'docs/training.md'))
    table.write_text(re.sub(r'(\n\| `photos` .*\n)', lambda last: last.group() + line, table.read_text(), count=1))
    project.run(USE_PROTOCOL, 'long')


USE_QUANTIZER = (
    BEGIN
    + """
from mxnet.gluon import nn

(method,) = sys.argv[1:]
beyond = np.nextafter(np.float32(1.3), np.float32(2))
x = np.array([0, -0.0, 0.5, -0.25, 1.3, -1.3, beyond, -beyond, 5, np.inf, -np.inf], np.float32)
data = mx.nd.array(x)
data.attach_grad()
with mx.autograd.record():
    y = bmx.QActivation(method=method)(data)
y.backward()
assert np.array_equal(y.asnumpy(), np.where(x >= 0, 1, -1))
expected = np.where(np.abs(x) <= np.float32(1.3), 2 * (1 - np.tanh(2 * x.astype(float)) ** 2), 0)
np.testing.assert_allclose(data.grad.asnumpy(), expected, rtol=1e-5, atol=1e-6)

net = nn.HybridSequential()
net.add(nn.BatchNorm(), bmx.BinaryConv2D(40, 3, padding=1, activation_method=method, quantization=method))
net.add(nn.BatchNorm(), bmx.BinaryConv2D(8, 3, padding=1, pad_value=0, activation_method=method, quantization=method), nn.Flatten())
net.add(nn.BatchNorm(), bmx.QActivation(method=method), bmx.QDense(3, quantization=method))
net.initialize(mx.init.Normal(1))
x = mx.nd.random.normal(shape=(2, 33, 7, 9))
assert bmx.check(net, x).problems == []
net.hybridize()
y = net(x)
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(2, 33, 7, 9), verify=True)
assert np.array_equal(bmx.Session('packed')(x.asnumpy()), y.asnumpy())
assert passed(method, 'tests/nn/test_quantizers.py') == 7
"""
)


def test_a_row_as_in_the_recipe_adds_a_quantizer_that_is_trained_and_packed(project):
    (row,) = code_of('Adding a quantizer')
    project.add_rows(file_of('Adding a quantizer', row), row)
    project.run(USE_QUANTIZER, 'tanh_sign')
