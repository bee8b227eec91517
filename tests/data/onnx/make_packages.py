"""Generate the models of Bitorch and Brevitas: ``python make_packages.py [NAME ...]``, in the environment of ``requirements-pytorch.txt``.

The networks are taken from the packages, with fewer channels.
"""

import sys
import warnings

import brevitas.export
import brevitas_examples.bnn_pynq.models.CNV as CNV
import brevitas_examples.bnn_pynq.models.FC as FC
import numpy as np
import onnx
import recording
import torch
from bitorch.layers import QConv2d
from bitorch.models.common_layers import get_initial_layers
from bitorch.models.densenet import DenseLayer
from bitorch.models.meliusnet import ImprovementBlock
from bitorch.models.quicknet import QuickNet
from bitorch.quantizations.dorefa import InputDoReFa, WeightDoReFa
from make_pytorch import export, prepare, remove_metadata
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.util.cleanup import cleanup_model
from torch import nn

BITORCH, BREVITAS = 'hpi-xnor/bitorch (bitorch 0.4.1)', 'Xilinx/brevitas (brevitas 0.13.4)'
BITORCH_FORM = 'Where(Sign == 0, 1, Sign) for inputs and weights; Pad with {} between Sign and Conv'


class MeliusNet(nn.Sequential):
    """MeliusNet of Bitorch's layers, since its own class leaves out the improvement blocks."""

    def __init__(self, features=16, growth=8, classes=10):
        layers = get_initial_layers('imagenet', 3, features)
        for _ in range(2):
            layers += [Concatenate(DenseLayer(features, growth, 0, 0, 1)), ImprovementBlock(growth, features + growth)]
            layers += [nn.BatchNorm2d(features + growth), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(features + growth, features, 1, bias=False)]
        super().__init__(*layers, nn.BatchNorm2d(features), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


class Concatenate(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.cat([x, self.layer(x)], dim=1)


def quicknet():
    return QuickNet([1, 3, 32, 32], section_filters=[16, 16], section_blocks=[1, 1], num_classes=10)


def dorefa():
    """Return a network with one bit for the inputs of one layer and two bits for inputs and weights of the other."""
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), QConv2d(8, 16, 3, padding=1, input_quantization=InputDoReFa(1))]
    layers += [nn.BatchNorm2d(16), QConv2d(16, 16, 3, padding=1, input_quantization=InputDoReFa(2), weight_quantization=WeightDoReFa(2))]
    return nn.Sequential(*layers, nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def cnv(weight_bits, bits):
    """Return the CNV of the examples of Brevitas; its numbers of channels are constants of its module."""
    CNV.CNV_OUT_CH_POOL = [(8, False), (8, True), (16, False), (16, True), (16, False), (16, False)]
    CNV.INTERMEDIATE_FC_FEATURES, CNV.LAST_FC_IN_FEATURES = [(16, 32), (32, 32)], 32
    return CNV.CNV(10, weight_bits, bits, 8, 3)


def tfc(weight_bits, bits, input_bits):
    """Return the TFC of the examples of Brevitas for images of 14x14 pixels and with fewer neurons."""
    return FC.FC(10, weight_bits, bits, input_bits, 1, [32, 32, 32], (14, 14))


TORCHSCRIPT, DYNAMO = {'opset': 13}, {'opset': 18, 'dynamo': True}
QONNX, QONNX_DYNAMO = {'export': 'qonnx'}, {'export': 'qonnx', 'dynamo': True}
BIPOLAR = 'BipolarQuant of inputs and weights'

# name: network, shape of its input without the batch, options of the export, facts
MODELS = {
    'bitorch-meliusnet': (MeliusNet, (3, 32, 32), TORCHSCRIPT, {'source': BITORCH, 'form': BITORCH_FORM.format(-1), 'binary': 4}),
    'bitorch-meliusnet-dynamo': (MeliusNet, (3, 32, 32), DYNAMO, {'source': BITORCH, 'form': BITORCH_FORM.format(-1), 'binary': 4}),
    'bitorch-quicknet': (quicknet, (3, 32, 32), TORCHSCRIPT, {'source': BITORCH, 'form': BITORCH_FORM.format(1), 'binary': 2, 'levels': 1}),
    'bitorch-dorefa': (
        dorefa, (3, 16, 16), DYNAMO,
        {'source': BITORCH, 'form': 'Clip, Round to 0 and 1, Pad with -1, weights: Sign; Clip, Round to 4 levels, weights: Round of Tanh',
         'binary': 1, 'low_bit': 1},
    ),
    'brevitas-cnv-w1a1': (
        lambda: cnv(1, 1), (3, 32, 32), QONNX,
        {'source': BREVITAS, 'form': BIPOLAR + '; 8-bit Quant of the image', 'binary': 8, 'levels': 1},
    ),
    'brevitas-cnv-w1a1-dynamo': (
        lambda: cnv(1, 1), (3, 32, 32), QONNX_DYNAMO,
        {'source': BREVITAS, 'form': BIPOLAR + '; 8-bit Quant of the image', 'binary': 8, 'levels': 1},
    ),
    'brevitas-tfc-w1a1': (lambda: tfc(1, 1, 1), (1, 14, 14), QONNX, {'source': BREVITAS, 'form': BIPOLAR, 'binary': 4}),
    'brevitas-tfc-w1a1-clean': (
        lambda: tfc(1, 1, 1), (1, 14, 14), QONNX | {'clean': True}, {'source': BREVITAS, 'form': BIPOLAR, 'binary': 4},
    ),
    'brevitas-tfc-w1a2': (
        lambda: tfc(1, 2, 2), (1, 14, 14), QONNX,
        {'source': BREVITAS, 'form': 'Quant of inputs to 3 levels (2 bits, narrow range); BipolarQuant of weights', 'binary': 0,
         'low_bit': 4},
    ),
    'brevitas-tfc-w2a2-qcdq': (
        lambda: tfc(2, 2, 2), (1, 14, 14), {'export': 'qcdq'},
        {'source': BREVITAS, 'form': 'QuantizeLinear, Clip, DequantizeLinear to 3 levels; weights: DequantizeLinear', 'binary': 0,
         'low_bit': 4},
    ),
}  # fmt: skip


def export_brevitas(model, shape, path, kind, dynamo=False, clean=False):
    """Write `model` with an exporter of Brevitas and return the name of the exporter."""
    function = brevitas.export.export_qonnx if kind == 'qonnx' else brevitas.export.export_onnx_qcdq
    function(model, args=torch.zeros(1, *shape), export_path=str(path), input_names=['input'], output_names=['output'], dynamo=dynamo)
    if dynamo:
        whole = onnx.load(path)  # without the external data that Brevitas leaves beside it
        path.with_name(f'{path.name}.data').unlink()
        onnx.save(whole, path)
        remove_metadata(path)
    if clean:
        onnx.save(cleanup_model(ModelWrapper(str(path))).model, path)
    name = 'QONNX' if kind == 'qonnx' else 'QCDQ'
    return f'Brevitas {name}, {"dynamo" if dynamo else "TorchScript"}{", then qonnx-cleanup" if clean else ""}, batch 1'


def make(name, build, shape, options, facts):
    options = dict(options)
    torch.manual_seed(sum(map(ord, name.removesuffix('-clean'))))
    kind, path = options.pop('export', None), recording.WORK / f'{name}.onnx'
    model = prepare(build(), shape)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        exporter = export_brevitas(model, shape, path, kind, **options) if kind else export(model, shape, path, **options)
    inputs = recording.choose_inputs(name, [(2, *shape)], **({'low': 0.0, 'high': 1.0} if kind else {}))
    with torch.no_grad():
        outputs = [np.concatenate([model(torch.from_numpy(inputs[0][i : i + 1])).numpy() for i in range(2)])]
    recording.record(name, inputs, outputs, exporter=exporter, **facts)


if __name__ == '__main__':
    for name in sys.argv[1:] or MODELS:
        make(name, *MODELS[name])
