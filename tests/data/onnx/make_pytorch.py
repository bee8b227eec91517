"""Generate the models of PyTorch networks: ``python make_pytorch.py [NAME ...]``.

The environment is in ``requirements-pytorch.txt`` (Python 3.11). The networks compute what the named repositories compute, in expressions
of the same form, so that the exporters write the same operators; the tests need none of these packages.
"""

import sys
import warnings

import networks
import numpy as np
import onnx
import onnxruntime
import recording
import torch
from torch import nn

IMAGE = (3, 16, 16)
BI_REAL = 'liuzechun/Bi-Real-net@f58aa4d'
REACTNET = 'liuzechun/ReActNet@a6cd08d'
IR_NET = 'htqin/IR-Net@f63a590'
ADABIN = 'huawei-noah/Efficient-Computing@225ddd2 (AdaBin)'
BNN_PYTORCH = '1adrianb/binary-networks-pytorch@51bdeee'
XNOR_NET = 'jiecaoyu/XNOR-Net-PyTorch@ebccb50'
DOREFA = 'zzzxxxttt/pytorch_DoReFaNet@a12b617'
TTQ = 'TropComplique/trained-ternary-quantization@4cd4132'
POLYNOMIAL = 'Sign minus a polynomial of Less and Cast plus the same; weights: mean magnitude * Sign - Clip + Clip'
IR_FORM = 'Sign; weights: Sign of standardized weights * Pow(2, Round(Log))'
STORED = 'Sign; weights stored as two levels'
SIMPLE = 'Sign; weights: Sign * mean magnitude'


def cifar(conv, activation):
    return lambda: networks.CifarResNet(conv, activation)


def bireal():
    return networks.ResNet(networks.BiRealBlock)


# name: network, input without batch, options of the export, facts
MODELS = {
    'birealnet18': (
        lambda: networks.ResNet(networks.BiRealBlock, (2, 2, 2, 2)), (3, 32, 32), {'opset': 13},
        {'source': BI_REAL, 'form': POLYNOMIAL, "binary": 8},
    ),
    'reactnet18': (
        lambda: networks.ResNet(networks.ReActBlock), (3, 32, 32), {'opset': 17}, {'source': REACTNET, 'form': POLYNOMIAL, 'binary': 4},
    ),
    'reactnet-a': (networks.ReActNetA, IMAGE, {'opset': 13}, {'source': REACTNET, 'form': POLYNOMIAL, 'binary': 8}),
    'irnet-resnet20': (
        cifar(networks.IRConv, networks.hardtanh), IMAGE, {'opset': 13}, {'source': IR_NET, 'form': IR_FORM, "binary": 4},
    ),
    'xnornet-alexnet': (networks.XNORAlexNet, (3, 32, 32), {'opset': 13}, {'source': XNOR_NET, 'form': STORED, 'binary': 5}),
}  # fmt: skip


def prepare(model, shape):
    """Give the normalizations statistics near those of random inputs and factors of both signs, and set the mode for inference."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        if norm.affine:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            norm.weight.data *= torch.where(torch.rand_like(norm.weight) < 0.2, -1.0, 1.0)
            nn.init.normal_(norm.bias, 0, 0.3)
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    model.train()
    for module in dropouts:
        module.eval()
    with torch.no_grad():
        model(4 * torch.rand(32, *shape) - 2)
        for norm in norms:
            norm.running_mean += 0.2 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
            norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.6, 1.7)
            norm.running_var += 0.01
    return model.eval()


def export(model, shape, path, opset, dynamo=False, dynamic=False, outputs=('output',), external=False):
    """Write `model` with one of PyTorch's exporters and return the name of the exporter."""
    # the newer exporter takes an axis of length one as constant
    example = torch.zeros(2 if dynamo and dynamic else 1, *shape)
    options = {'input_names': ['input'], 'output_names': list(outputs), 'opset_version': opset, 'dynamo': dynamo}
    if dynamo:
        options |= {'dynamic_shapes': ({0: torch.export.Dim('batch')},) if dynamic else None, 'external_data': external}
    elif dynamic:
        options['dynamic_axes'] = {name: {0: 'batch'} for name in ('input', *outputs)}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(model, (example,), str(path), verbose=False, **options)
    if external and not dynamo:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location=f'{path.name}.data', size_threshold=256)
    batch = 'any batch' if dynamic else 'batch 1'
    return f'torch.onnx {"dynamo" if dynamo else "TorchScript"}, {batch}'


def optimize(path):
    """Replace a model by what ONNX Runtime writes after its basic optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(path.read_bytes(), options, providers=['CPUExecutionProvider'])


def make(name, build, shape, options, facts):
    options = dict(options)
    seed, optimized = options.pop('seed', name), options.pop('optimized', False)
    torch.manual_seed(sum(map(ord, seed)))
    model = prepare(build(), shape)
    path = recording.DATA / f'{name}.onnx'
    exporter = export(model, shape, path, **options)
    if optimized:
        optimize(path)
        exporter += f', optimized by ONNX Runtime {onnxruntime.__version__}'
    inputs = recording.choose_inputs(str(path), [(2, *shape)])
    with torch.no_grad():
        outputs = model(torch.from_numpy(inputs[0]))
    outputs = [tensor.numpy() for tensor in (outputs if isinstance(outputs, tuple) else (outputs,))]
    recording.record(name, inputs, [np.ascontiguousarray(array) for array in outputs], exporter=exporter, **facts)


if __name__ == '__main__':
    for name in sys.argv[1:] or MODELS:
        make(name, *MODELS[name])
