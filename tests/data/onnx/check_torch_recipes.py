"""Import modules of quantization libraries by `import_torch`: ``python check_torch_recipes.py``.

Run with Python 3.11, torch 2.13.0, brevitas 0.13.4, torchao 0.18.0, onnxscript 0.7.2, numpy 1.26.4, onnx, onnxruntime and
Pillow. It prints for each library and exporter the bits of the weights of each layer, or why it is refused.
"""

import pathlib
import sys

import brevitas.nn as qnn
import torch
from brevitas.quant import SignedBinaryActPerTensorConst, SignedBinaryWeightPerTensorConst
from torch import nn
from torch.ao import quantization
from torchao.quantization import quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
import bmx_melius as bmx  # noqa: E402

SHAPE = (1, 3, 16, 16)


def trained(net):
    """Return a network with statistics of random images."""
    with torch.no_grad():
        for _ in range(3):
            net.train()(torch.randn(8, *SHAPE[1:]))
    return net


def brevitas_network():
    """Return a network with one bit for inputs and weights."""

    def layer(inputs, outputs):
        signs = qnn.QuantIdentity(act_quant=SignedBinaryActPerTensorConst, min_val=-1.0, max_val=1.0)
        conv = qnn.QuantConv2d(inputs, outputs, 3, padding=1, bias=False, weight_quant=SignedBinaryWeightPerTensorConst)
        return [signs, conv, nn.BatchNorm2d(outputs)]

    stem = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)]
    return trained(nn.Sequential(*stem, *layer(8, 16), *layer(16, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)))


def fake_quantized():
    """Return a network of torch.ao.quantization with two bits for inputs and weights."""
    observer, fake = quantization.MovingAverageMinMaxObserver, quantization.FakeQuantize
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
    )
    net.qconfig = quantization.QConfig(
        activation=fake.with_args(observer=observer, quant_min=0, quant_max=3, dtype=torch.quint8),
        weight=fake.with_args(observer=observer, quant_min=-2, quant_max=1, dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
    )
    return trained(quantization.prepare_qat(net.train())).apply(quantization.disable_observer)


def with_weights_of_4_bits():
    """Return a network of torchao with weights of 4 bits in its dense layers, and a scale for each output."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 64), nn.ReLU(), nn.Linear(64, 5))
    quantize_(net, QATConfig(weight_config=IntxFakeQuantizeConfig(torch.int4, 'per_channel'), step='prepare'))
    return trained(net)


def main():
    """Print what becomes of each network."""
    for name, build in (('brevitas', brevitas_network), ('torch.ao', fake_quantized), ('torchao', with_weights_of_4_bits)):
        for exporter in ('torchscript', 'dynamo'):
            torch.manual_seed(0)
            try:
                report = bmx.import_torch(build(), SHAPE, 'packed', exporter=exporter)
                print(f'{name}, {exporter}: {", ".join(str(layer.bits) for layer in report.layers)} bits; {report.comparison}')
            except bmx.UserError as error:
                print(f'{name}, {exporter}: refused: {error}')


if __name__ == '__main__':
    main()
