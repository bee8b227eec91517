"""Modules of PyTorch become packed networks that compute the same as the module, and the module stays as it was.

These tests need PyTorch and are skipped without it: `make test-extras ARGS=torch` runs them.
"""

import copy
import importlib.util
import json
import os
import pathlib
import re

import numpy as np
import pytest

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.__main__ import main

torch = pytest.importorskip('torch')
from torch import nn  # noqa: E402

from bmx_melius.deployment.pytorch import comparison, fake_quantization  # noqa: E402

DATA = pathlib.Path(__file__).parents[2] / 'data' / 'onnx'
SHAPE = (1, 3, 16, 16)
HAS_DYNAMO = tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 5)


def load_networks():
    spec = importlib.util.spec_from_file_location('networks_of_repositories', DATA / 'networks.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


networks = load_networks()


class TwoResults(torch.autograd.Function):
    """The sign and the mean magnitude, as XNOR-Net-PyTorch's BinActive: the TorchScript exporter mixes up such results."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign(), x.abs().mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient, _):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class InPlace(torch.autograd.Function):
    """A sign that is 1 at 0, assigned in place."""

    @staticmethod
    def forward(ctx, x):
        out = x.sign()
        out[out == 0] = 1
        return out

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class BinaryConv(nn.Conv2d):
    def __init__(self, sign, inputs, outputs):
        super().__init__(inputs, outputs, 3, padding=1)
        self.sign = sign

    def forward(self, x):
        weight = self.sign(self.weight) * self.weight.abs().mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(self.sign(x), weight, None, self.stride, self.padding)


def small(sign=networks.Sign.apply, head=5):
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), BinaryConv(sign, 8, 16), nn.BatchNorm2d(16), BinaryConv(sign, 16, 16)]
    return nn.Sequential(*layers, nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, head))


def trained(build, *arguments):
    """Return a network with statistics and parameters of normalizations as after a training, in training mode."""
    torch.manual_seed(0)
    net = build(*arguments)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.3)
    with torch.no_grad():
        for _ in range(5):
            net(torch.randn(8, *SHAPE[1:]))
    return net


def assert_same_outputs(net, prefix, seed=7):
    x = torch.randn(6, *SHAPE[1:], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected = net.eval()(x).numpy()
    close = np.abs(bmx.Session(prefix)(x.numpy()) - expected).max(1) < 1e-4 * np.abs(expected).max()
    assert close.sum() >= 5  # a value may be next to a threshold


NETWORKS = {
    'Bi-Real Net': (lambda: networks.ResNet(networks.BiRealBlock, (1, 1), (8, 16)), 2),
    'a function for the sign': (small, 2),
    'a function with two results': (lambda: small(lambda x: TwoResults.apply(x)[0]), 2),
    'a sign in place': (lambda: small(InPlace.apply), 2),
    'signs by comparison': (lambda: small(lambda x: torch.where(x >= 0, 1.0, -1.0)), 2),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_a_module_becomes_a_packed_network_with_its_outputs(name, tmp_path):
    if name == 'a function with two results' and not HAS_DYNAMO:
        pytest.skip('the exporter of this version of PyTorch mixes up the results')
    build, binary_layers = NETWORKS[name]
    net = trained(build)
    report = bmx.import_torch(net, SHAPE, tmp_path / 'packed', zero_is_positive=True)
    assert report.binary_layers == binary_layers and report.comparison.inputs == comparison.INPUTS
    assert report.comparison.largest_deviation < 1e-5
    assert f'verified with {type(net).__name__} in PyTorch {torch.__version__}' in str(report)
    assert report.conversion.params_file == str(tmp_path / 'packed-0000.params') and json.dumps(report.to_json())
    assert_same_outputs(net, tmp_path / 'packed')


def fake_quantized(bits, per_channel, fused):
    """Return a network of torch.ao.quantization after some steps of a training, with its observers at work."""
    quantization = pytest.importorskip('torch.ao.quantization')
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).train()
    if fused:
        net = quantization.fuse_modules_qat(net, [['0', '1', '2'], ['3', '4', '5'], ['6', '7']])
    fake, observer = quantization.FakeQuantize, quantization.MovingAverageMinMaxObserver
    of_weights = quantization.MovingAveragePerChannelMinMaxObserver if per_channel else observer
    signed = {'dtype': torch.qint8, 'qscheme': torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric}
    net.qconfig = quantization.QConfig(
        activation=fake.with_args(observer=observer, quant_min=0, quant_max=2**bits - 1, dtype=torch.quint8),
        weight=fake.with_args(observer=of_weights, quant_min=-(2 ** (bits - 1)), quant_max=2 ** (bits - 1) - 1, **signed),
    )
    net = quantization.prepare_qat(net)
    for _ in range(4):
        net(torch.randn(8, *SHAPE[1:]))
    return net


@pytest.mark.filterwarnings('ignore')  # of PyTorch, about the package
@pytest.mark.parametrize('exporter', ['torchscript', *['dynamo'] * HAS_DYNAMO])
@pytest.mark.parametrize('bits, per_channel, fused', [(2, False, False), (3, True, True), (4, True, False)])
def test_fake_quantization_to_few_bits_has_the_ranges_of_the_last_step(bits, per_channel, fused, exporter, tmp_path):
    planes = [3, 2] if bits == 2 else [bits] * 2  # of the layers inside: levels from -2 to 1 are sums of three signs
    net = fake_quantized(bits, per_channel, fused)
    ranges = {name: value.clone() for name, value in net.state_dict().items()}
    report = bmx.import_torch(net, SHAPE, tmp_path / 'packed', exporter=exporter)
    assert [layer.bits for layer in report.layers] == [bits, *planes, bits]
    assert all(torch.equal(value, ranges[name]) for name, value in net.state_dict().items())
    for each in net.modules():
        if hasattr(each, 'observer_enabled'):
            each.observer_enabled.zero_()
    assert_same_outputs(net, tmp_path / 'packed')


@pytest.mark.parametrize('sum_of_levels, decided', [(14, True), (15, False), (16, True)])
def test_rounding_errors_decide_a_mean_of_levels_that_is_halfway_between_two(sum_of_levels, decided):
    quantization = pytest.importorskip('torch.ao.quantization')

    class Means(nn.Module):
        def __init__(self):
            super().__init__()
            self.rounding = quantization.FakeQuantize(quant_min=0, quant_max=15)
            self.rounding.scale.fill_(0.3)

        def forward(self, x):
            return self.rounding(self.rounding(x).mean(1))

    net = fake_quantization.without_observers(Means().eval())
    x = torch.zeros(1, 10)
    x[0, :2] = 0.3 * torch.tensor([9.0, sum_of_levels - 9])
    assert comparison._is_unstable(torch, net, {'x': x}, [net(x).numpy()]) != decided


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('scheme', ['per_tensor_affine', 'per_channel_symmetric', 'per_channel_affine', 'per_channel_affine_float_qparams'])
def test_fake_quantization_in_plain_operators_has_the_same_values(scheme):
    quantization, random = pytest.importorskip('torch.ao.quantization'), torch.Generator().manual_seed(0)
    kind = 'PerChannelMinMaxObserver' if 'channel' in scheme else 'MinMaxObserver'
    settings = {'qscheme': getattr(torch, scheme), 'dtype': torch.qint8 if 'symmetric' in scheme else torch.quint8}
    limits = (-4, 3) if 'symmetric' in scheme else (0, 7)
    quantizer = quantization.FakeQuantize(getattr(quantization, kind), *limits, **settings)
    x = torch.randn(6, 40, generator=random) + 0.3
    quantizer(x)
    net = fake_quantization.without_observers(nn.Sequential(quantizer).eval())
    plain = fake_quantization.in_plain_operators(net)
    of_rounding = 1e-6 if scheme == 'per_channel_affine_float_qparams' else 0
    assert plain is not net and (plain(2 * x) - net(2 * x)).abs().max() <= of_rounding


def test_fake_quantization_that_computes_something_else_stays_as_it_is():
    quantization = pytest.importorskip('torch.ao.quantization')

    class Bounded(quantization.FakeQuantize):
        def forward(self, x):
            return super().forward(torch.tanh(x))

    net = nn.Sequential(Bounded())
    assert fake_quantization.in_plain_operators(net) is net


@pytest.mark.filterwarnings('ignore')
def test_fake_quantization_in_operators_of_other_values_is_refused(tmp_path, monkeypatch):
    rounded = fake_quantization._rounded

    def wrong(torch, quantizer):
        quantizer.scale *= 1.02
        return rounded(torch, quantizer)

    net = fake_quantized(4, True, False)
    monkeypatch.setattr(fake_quantization, '_rounded', lambda torch, quantizer: wrong(torch, copy.deepcopy(quantizer)))
    with pytest.raises(UserError, match='the packed network differs from Sequential'):
        bmx.import_torch(net, SHAPE, tmp_path / 'packed')
    assert list(tmp_path.iterdir()) == []


def test_signs_of_zero_are_refused_without_permission_at_the_first_exporter(tmp_path):
    with pytest.raises(UserError, match='^Sequential: the value .* is a sign that is 0 where its argument is 0') as caught:
        bmx.import_torch(trained(small), SHAPE, tmp_path / 'packed')
    assert 'exporter' not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_the_module_and_the_random_numbers_of_pytorch_stay_as_they_were(tmp_path):
    net = trained(small)
    net[1].eval()
    net(torch.randn(2, *SHAPE[1:])).sum().backward()
    net[2].kept = net[2].weight * 2  # a result that is not a leaf, which cannot be copied
    modes = [part.training for part in net.modules()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    gradients = {name: (id(value.grad), value.grad.clone()) for name, value in net.named_parameters() if value.grad is not None}
    before = torch.random.get_rng_state()
    bmx.import_torch(net, SHAPE, tmp_path / 'packed', zero_is_positive=True)
    assert torch.equal(before, torch.random.get_rng_state()) and torch.is_grad_enabled()
    assert modes == [part.training for part in net.modules()] and all(value.requires_grad for value in net.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    for name, value in net.named_parameters():
        if value.grad is not None:
            assert id(value.grad) == gradients[name][0] and torch.equal(value.grad, gradients[name][1])
    assert net[2].kept.grad_fn is not None


def test_wrappers_of_training_are_left_out(tmp_path):
    net = trained(small)
    report = bmx.import_torch(nn.DataParallel(net), torch.randn(2, *SHAPE[1:]), tmp_path / 'packed', zero_is_positive=True)
    assert report.comparison.module == 'Sequential'
    assert_same_outputs(net, tmp_path / 'packed')


class Several(nn.Module):
    """A network of two inputs that returns several tensors."""

    def __init__(self, result):
        super().__init__()
        self.first, self.second, self.result = small(head=4), nn.Linear(6, 4), result

    def forward(self, image, facts):
        x = self.first(image)
        return self.result(x, x + self.second(facts))


@pytest.mark.parametrize(
    'result',
    [lambda x, y: (x, None, y), lambda x, y: {'one': x, 'two': y}, lambda x, y: [x, y]],
    ids=['tuple', 'dict', 'list'],
)
@pytest.mark.parametrize('named', [False, True])
def test_several_inputs_and_outputs_keep_their_order(result, named, tmp_path):
    torch.manual_seed(0)
    net = Several(result).eval()
    nn.init.normal_(net.first[3].running_mean, 0, 0.3)
    image, facts = torch.randn(SHAPE), torch.randn(1, 6)
    example = {'facts': facts, 'image': image} if named else (image, facts)
    report = bmx.import_torch(net, example, tmp_path / 'packed', zero_is_positive=True)
    session = bmx.Session(tmp_path / 'packed')
    assert session.input_names == ['image', 'facts'] and len(report.outputs) == 2
    with torch.no_grad():
        found = net(image, facts)
        expected = [value for value in (found.values() if isinstance(found, dict) else found) if value is not None]
    for ours, theirs in zip(session(image.numpy(), facts.numpy()), expected):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_operators_at_the_end_that_are_left_out_are_compared_as_well(tmp_path):
    net = nn.Sequential(trained(small), nn.Softmax(1))
    report = bmx.import_torch(net, SHAPE, tmp_path / 'packed', zero_is_positive=True)
    assert report.comparison.inputs == comparison.INPUTS
    assert_same_outputs(net[0], tmp_path / 'packed')  # logits


class Recurrent(nn.Module):
    """Binary layers, then a GRU over the positions of a map; `beside` adds a part that reads the input."""

    def __init__(self, beside):
        super().__init__()
        self.layers, self.memory, self.head, self.beside = small()[:6], nn.GRU(16, 8, batch_first=True), nn.Linear(8, 5), beside

    def forward(self, x):
        y = self.head(self.memory(self.layers(x).flatten(2).transpose(1, 2))[0][:, -1])
        return y + x.mean((1, 2, 3)).unsqueeze(1) if self.beside else y


@pytest.mark.parametrize('exporter', ['torchscript', *(['dynamo'] if HAS_DYNAMO else [])])
@pytest.mark.parametrize('beside', [False, True])
def test_a_module_is_packed_up_to_a_value_and_compared_with_what_follows(beside, exporter, tmp_path):
    net, options = trained(Recurrent, beside), {'zero_is_positive': True, 'exporter': exporter}
    with pytest.raises(UserError, match='has a state from one step to the next') as caught:
        bmx.import_torch(net, SHAPE, tmp_path / 'packed', **options)
    (name,) = re.findall(r"outputs=\['([^']*)'\]", str(caught.value))
    report = bmx.import_torch(net, SHAPE, tmp_path / 'packed', outputs=[name], **options)
    assert report.comparison.inputs == comparison.INPUTS and any('GRU' in note for note in report.notes)
    x = torch.randn(1, *SHAPE[1:], generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = net.layers.eval()(x).numpy()
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x.numpy()), expected, rtol=1e-4, atol=1e-4)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.heads = small()[:-1], nn.ModuleList([nn.Linear(16, 3), nn.Linear(16, 5)])

    def forward(self, x):
        y = self.layers(x)
        return tuple(head(y) for head in self.heads)


def test_one_of_the_outputs_of_a_module_is_packed_alone(tmp_path):
    net, model_file = trained(TwoOutputs).eval(), tmp_path / 'net.onnx'
    bmx.import_torch(net, SHAPE, tmp_path / 'both', zero_is_positive=True, exporter='torchscript', model_file=model_file)
    second = importlib.import_module('onnx').load(model_file).graph.output[1].name
    bmx.import_torch(net, SHAPE, tmp_path / 'packed', zero_is_positive=True, exporter='torchscript', outputs=[second])
    x = np.random.RandomState(0).normal(size=SHAPE).astype('f')
    np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x), bmx.Session(tmp_path / 'both')(x)[1], rtol=1e-5, atol=1e-6)


class DependsOnNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = small()

    def forward(self, x):
        return self.network(x) if x.mean() > 0 else -self.network(x)


def test_a_module_that_no_exporter_records_is_told_by_the_comparison(tmp_path):
    with pytest.raises(UserError, match='DependsOnNumbers') as caught:
        bmx.import_torch(trained(DependsOnNumbers), SHAPE, tmp_path / 'packed', zero_is_positive=True)
    assert 'the packed network differs from DependsOnNumbers by' in str(caught.value) and '\n' not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Fake:
    """A session that returns the outputs of a function."""

    input_names = ['x']

    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(torch.from_numpy(x)).numpy()


class Passed(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def ties(x, dtype=torch.float32):
    """Return what 12.5 is rounded to, 13 in float32 and 12 in float64, for any x but 0."""
    return torch.round((x != 0).to(dtype) * 5 / 9 * 22.5)


@pytest.mark.parametrize(
    'function, fake, expected',
    [
        (torch.sin, torch.sin, (4, 0, 0)),
        (lambda x: torch.sin(x * 1e7), torch.cos, (0, 17, 0)),  # no result means anything
        (ties, lambda x: ties(x, torch.float64).float(), (0, 17, 0)),
        (lambda x: (x * 0).sign() + x, lambda x: x + 1, (4, 0, 4)),  # signs of zeros
        (lambda x: (x * 0).abs().sign_() + x, lambda x: x + 1, (4, 0, 4)),
        (lambda x: torch.zeros(8).sign() + x, lambda x: x + 1, None),  # of weights
        (torch.sin, lambda x: torch.sin(x) + 0.01, None),
    ],
    ids=['same', 'rounding', 'ties', 'zeros', 'zeros in place', 'zeros of weights', 'different'],
)
def test_a_comparison_tells_differences_from_rounding_errors_and_zeros(function, fake, expected, monkeypatch):
    monkeypatch.setattr(comparison, '_rest_of_model', lambda *_: lambda values, inputs: values)
    arguments = Passed(function), {'x': torch.randn(1, 8)}, Fake(fake), ['y'], 'net.onnx', True
    if expected is None:
        with pytest.raises(UserError, match=r'differs from Passed by \d\.\de-0[012] of the largest'):
            comparison.compare(*arguments)
        return
    found = comparison.compare(*arguments)
    assert (found.inputs, found.undecided, found.zeros) == expected
    assert str(found).startswith('verified with Passed' if found.inputs else 'not verified with Passed')


@pytest.mark.parametrize('option', ['half', 'calibration'])
def test_networks_of_other_precisions_are_compared_with_layers_in_float32(option, tmp_path):
    images = np.random.default_rng(0).normal(size=(16, *SHAPE[1:])).astype(np.float32)
    options = {'half': True} if option == 'half' else {'calibration': images, 'min_correlation': -1}
    report = bmx.import_torch(trained(small), SHAPE, tmp_path / 'packed', zero_is_positive=True, **options)
    assert report.comparison.inputs == comparison.INPUTS
    assert {layer.bits for layer in report.layers} == {1, 16 if option == 'half' else 8}


REFUSALS = {
    'no module': (lambda: 3, SHAPE, {}, 'import_torch: int is not a network of PyTorch, a torch.nn.Module'),
    'other shape': (small, (1, 4, 16, 16), {}, r'Sequential fails on an input of \(1, 4, 16, 16\): RuntimeError: .*channels'),
    'no shape': (small, 'x', {}, 'the example is str: give a tensor, an array or a shape'),
    'empty shape': (small, (1, 3, 0, 16), {}, r'the shape \(1, 3, 0, 16\) of an input has a size below 1'),
    'too many inputs': (small, (torch.zeros(SHAPE),) * 2, {}, r'the example does not fit Sequential.forward\(input\): too many'),
    'exporter': (small, SHAPE, {'exporter': 'tracing'}, "has no exporter 'tracing'; it has torchscript"),
    'output': (lambda: Passed(lambda x: 'text'), SHAPE, {}, 'Passed returns str: its forward must return a tensor'),
    'outputs': (lambda: Passed(lambda x: [x, [x]]), SHAPE, {}, 'Passed returns list as output1: its forward must return a tensor, or'),
    'no output': (lambda: Passed(lambda x: []), SHAPE, {}, 'Passed returns nothing'),
    'no bits': (lambda: nn.Conv2d(3, 4, 1), SHAPE, {}, 'Conv2d: this network has no binary layer'),
}


@pytest.mark.parametrize('name', REFUSALS)
def test_what_cannot_be_imported_is_refused_in_one_line(name, tmp_path):
    build, example, options, message = REFUSALS[name]
    with pytest.raises(UserError, match=message) as caught:
        bmx.import_torch(build(), example, tmp_path / 'packed', zero_is_positive=True, **options)
    assert '\n' not in str(caught.value) and list(tmp_path.iterdir()) == []


# --- bmx-melius import-torch --------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import test_import_torch as tests

def build(head=5):
    return tests.trained(lambda: tests.small(head=head))

def wrapped():
    return tests.nn.DataParallel(build())

def fails():
    raise RuntimeError('no data')

def number():
    return 3
"""


@pytest.fixture()
def folder(tmp_path, monkeypatch):
    """Change to a folder with a module `nets` and the weights of a network, `net.pth`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'nets_of_test.py').write_text(PROGRAM.format(tests=os.path.dirname(__file__)))
    torch.save(trained(small).state_dict(), 'net.pth')
    return tmp_path


def weights():
    return torch.load('net.pth', weights_only=True)


COMMAND = ['import-torch', 'nets_of_test:build', 'packed', '--input-shape', '1,3,16,16', '--zero-is-positive']
FORMS = {
    'a state dict': lambda state: state,
    'state_dict': lambda state: {'epoch': 3, 'state_dict': state, 'optimizer': {}},
    'model, of nn.DataParallel': lambda state: {'model': {f'module.{name}': value for name, value in state.items()}},
    'of torch.compile in nn.DataParallel': lambda state: {f'module._orig_mod.{name}': value for name, value in state.items()},
    'without num_batches_tracked': lambda state: {name: value for name, value in state.items() if 'num_batches' not in name},
}


@pytest.mark.parametrize('form', FORMS)
def test_the_command_loads_weights_in_each_form_of_checkpoint(form, folder, capsys):
    torch.save(FORMS[form](weights()), 'other.pth')
    assert main([*COMMAND, '--weights', 'other.pth']) == 0
    printed = capsys.readouterr()
    assert printed.err == '' and '2 binary layers of 4 convolutions and dense layers' in printed.out
    assert f'verified with Sequential in PyTorch {torch.__version__}' in printed.out
    assert_same_outputs(trained(small), 'packed')


def test_the_command_stores_the_preprocessing_and_names_and_keeps_the_onnx_model(folder, capsys):
    pathlib.Path('names.txt').write_text('\n'.join('abc'))
    words = ['--model-options', '{"head": 3}', '--input-size', '16', '--mean', '120,120,120', '--classes-file', 'names.txt']
    command = ['import-torch', 'nets_of_test:build', 'packed', '--zero-is-positive', '--keep-onnx', 'net.onnx', '--json', *words]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts['binary_layers'] == 2 and facts['comparison']['inputs'] == comparison.INPUTS
    session = bmx.Session('packed')
    assert session.input_spec.size == 16 and session.input_spec.mean == (120, 120, 120) and session.class_names == list('abc')
    assert bmx.import_onnx('net.onnx', 'again', zero_is_positive=True).binary_layers == 2


class Hostile:
    def __reduce__(self):
        return os.mkdir, ('executed',)


def write_pickle(content):
    return lambda: torch.save(content(weights()), 'other.pth')


WRONG_FILES = {
    'more than weights': (
        write_pickle(lambda state: {'state_dict': state, 'x': Hostile()}),
        'has more than weights, which would be executed',
    ),
    'a whole network': (lambda: torch.save(nn.Linear(2, 3), 'other.pth'), 'has more than weights'),
    'an old pickle': (
        lambda: torch.save({'x': Hostile()}, 'other.pth', _use_new_zipfile_serialization=False),
        'has more than weights' if HAS_DYNAMO and torch.__version__ >= '2.6' else 'is not an archive of weights',
    ),
    'text': (lambda: pathlib.Path('other.pth').write_text('weights'), 'cannot be read as weights of PyTorch|is not an archive of weights'),
    'no file': (lambda: None, 'other.pth: No such file or directory'),
    'a list': (write_pickle(lambda state: list(state.values())), 'has no state dict, neither as a whole nor as state_dict, .*: it is list'),
    'other keys': (write_pickle(lambda state: {'ema': state, 'epoch': 1}), 'has no state dict, .*: it has ema, epoch'),
    'another network': (
        write_pickle(lambda state: {**{name: value for name, value in state.items() if name != '0.bias'}, 'x': state['0.bias']}),
        r'are not of Sequential: 1 parameter missing \(0.bias\), 1 parameter unknown \(x\)$',
    ),
    'another size': (
        write_pickle(lambda state: {**state, '0.bias': torch.zeros(9)}),
        r'are not of Sequential: 1 parameter of another shape \(0.bias \(9,\) instead of \(8,\)\)$',
    ),
}


@pytest.mark.parametrize('name', WRONG_FILES)
def test_files_that_are_not_weights_of_the_network_are_refused_in_one_line_and_not_executed(name, folder, capsys):
    write, message = WRONG_FILES[name]
    write()
    assert main([*COMMAND, '--weights', 'other.pth']) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('error: ') and re.search(message, line), line
    assert not os.path.exists('executed') and not os.path.exists('packed-symbol.json')


@pytest.mark.parametrize(
    'words, message',
    [
        (['nets_of_test:fails'], 'nets_of_test:fails raises RuntimeError: no data'),
        (['nets_of_test:number'], 'nets_of_test:number: int is not a network of PyTorch'),
        (['nets_of_test:missing'], 'the network nets_of_test:missing cannot be built'),
        (['nowhere:build'], 'the network nowhere:build cannot be built: there is no module nowhere'),
        (['nets_of_test:build', '--model-options', '{"widht": 3}'], 'nets_of_test:build does not take the arguments widht'),
    ],
)
def test_functions_that_build_no_network_are_refused_in_one_line(words, message, folder, capsys):
    function, *options = words
    assert main(['import-torch', function, 'packed', '--input-shape', '1,3,16,16', *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f'error: {message}')


def test_the_shape_of_the_input_must_be_given(folder, capsys):
    assert main(['import-torch', 'nets_of_test:build', 'packed']) == 2
    assert '--input-shape N,C,H,W' in capsys.readouterr().err
