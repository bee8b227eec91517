"""Generate the models of PyTorch networks: ``python make_pytorch.py [NAME ...]``.

The environment is in ``requirements-pytorch.txt`` (Python 3.11). The networks compute what the named repositories compute, in expressions
of the same form, so that the exporters write the same operators; the tests need none of these packages.
"""

import itertools
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
BINARY_NET = 'itayhubara/BinaryNet.pytorch@80f6d46'
DOREFA = 'zzzxxxttt/pytorch_DoReFaNet@a12b617'
FRACBNN = 'cornell-zhang/FracBNN@4652ea1'
RBNN = 'lmbxmu/RBNN@0b5e73b'
BNEXT = 'hpi-xnor/BNext@dfcf347'
BIPOINTNET = 'htqin/BiPointNet@b12d8ba'
TTQ = 'TropComplique/trained-ternary-quantization@4cd4132'
POLYNOMIAL = 'Sign minus a polynomial of Less and Cast plus the same; weights: mean magnitude * Sign - Clip + Clip'
IR_FORM = 'Sign; weights: Sign of standardized weights * Pow(2, Round(Log))'
STORED = 'Sign; weights stored as two levels'
ADABIN_FORM = 'alpha * (Sign of (x - beta) / alpha in the polynomial form + beta); weights: Sign * deviation + mean'
BIBERT = 'BiBERT (arXiv:2203.06390)'
TOKEN_FORM = 'Sign of tokens + thresholds, MatMul; weights: Sign of centred weights * mean magnitude'
SIMPLE = 'Sign; weights: Sign * mean magnitude'


def cifar(conv, activation):
    return lambda: networks.CifarResNet(conv, activation)


def small_bireal():
    return networks.ResNet(networks.BiRealBlock, (1, 1), (8, 16))


def small_reactnet():
    return networks.ResNet(networks.ReActBlock, (1, 2), (8, 16))


def described(source, form, binary, **facts):
    """Return the facts of a model; `binary` counts the layers with two levels of both inputs and weights."""
    return {'source': source, 'form': form, 'binary': binary} | facts


TORCHSCRIPT_13, DYNAMO_18 = {'opset': 13}, {'opset': 18, 'dynamo': True}
ANY_BATCH = {'opset': 17, 'dynamic': True}
SMALL_BIREAL = described(BI_REAL, POLYNOMIAL, 2)
FORM_NAMES = ', '.join(networks.FORMS)

# name: network, shape of its input without the batch, options of the export, facts
MODELS = {
    'birealnet18': (
        lambda: networks.ResNet(networks.BiRealBlock, (2, 2, 2, 2)), (3, 32, 32), TORCHSCRIPT_13, described(BI_REAL, POLYNOMIAL, 8),
    ),
    'birealnet-dynamo': (
        lambda: networks.ResNet(networks.BiRealBlock, (1, 2), (8, 16)), (3, 32, 32), DYNAMO_18 | {'dynamic': True},
        described(BI_REAL, POLYNOMIAL, 3),
    ),
    **{
        f'birealnet-opset{opset}': (small_bireal, IMAGE, {'opset': opset, 'seed': 'birealnet', 'dynamo': opset == 21}, SMALL_BIREAL)
        for opset in (11, 13, 17, 21)
    },
    'birealnet-batch': (small_bireal, IMAGE, ANY_BATCH | {'seed': 'birealnet'}, SMALL_BIREAL),
    'birealnet-any-size': (small_bireal, IMAGE, ANY_BATCH | {'seed': 'birealnet', 'any_size': True}, SMALL_BIREAL),
    'birealnet-external': (small_bireal, IMAGE, {'opset': 17, 'seed': 'birealnet', 'external': True}, SMALL_BIREAL),
    'birealnet-external-dynamo': (small_bireal, IMAGE, DYNAMO_18 | {'seed': 'birealnet', 'external': True}, SMALL_BIREAL),
    'birealnet-optimized': (small_bireal, IMAGE, {'opset': 17, 'seed': 'birealnet', 'optimized': True}, SMALL_BIREAL),
    'reactnet18': (small_reactnet, (3, 32, 32), {'opset': 17}, described(REACTNET, POLYNOMIAL, 3)),
    'reactnet18-dynamo': (small_reactnet, (3, 32, 32), DYNAMO_18, described(REACTNET, POLYNOMIAL, 3)),
    'reactnet-a': (lambda: networks.ReActNetA((8, 8, 16, 16), (1, 2, 1)), IMAGE, TORCHSCRIPT_13, described(REACTNET, POLYNOMIAL, 7)),
    'reactnet-a-dynamo': (lambda: networks.ReActNetA((8, 16, 16), (2, 1)), IMAGE, DYNAMO_18, described(REACTNET, POLYNOMIAL, 5)),
    'irnet-resnet20': (cifar(networks.IRConv, networks.hardtanh), IMAGE, TORCHSCRIPT_13, described(IR_NET, IR_FORM, 4)),
    'irnet-resnet20-dynamo': (cifar(networks.IRConv, networks.hardtanh), IMAGE, DYNAMO_18, described(IR_NET, IR_FORM, 4)),
    'irnet-vgg': (lambda: networks.VGGSmall(networks.IRConv), IMAGE, ANY_BATCH, described(IR_NET, IR_FORM, 3)),
    'adabin-resnet20': (cifar(networks.AdaBinConv, networks.Maxout), IMAGE, TORCHSCRIPT_13, described(ADABIN, ADABIN_FORM, 4)),
    'adabin-resnet20-dynamo': (cifar(networks.AdaBinConv, networks.Maxout), IMAGE, DYNAMO_18, described(ADABIN, ADABIN_FORM, 4)),
    'bnn-pytorch-resnet': (
        lambda: networks.ResNet(networks.PreBasicBlock, (1, 1), (8, 16)), IMAGE, TORCHSCRIPT_13,
        described(BNN_PYTORCH, 'Sign; weights: Sign of centred weights * ReduceL1 / count; output * scale, then PReLU', 4),
    ),
    'bnn-pytorch-resnet-dynamo': (
        lambda: networks.ResNet(networks.PreBasicBlock, (1,), (8,)), IMAGE, DYNAMO_18,
        described(BNN_PYTORCH, 'Sign; weights: Sign of centred weights * ReduceL1 / count; output * scale, then PReLU', 2),
    ),
    'xnornet-alexnet': (networks.XNORAlexNet, (3, 32, 32), TORCHSCRIPT_13, described(XNOR_NET, STORED + ', convolutions and Gemm', 5)),
    'xnornet-alexnet-k': (
        lambda: networks.XNORAlexNet(scale=True), (3, 32, 32), TORCHSCRIPT_13,
        described(XNOR_NET, STORED + '; convolutions * box filter of the mean input magnitude', 5, levels=3),
    ),
    'xnornet-nin': (
        networks.XNORNetworkInNetwork, IMAGE, ANY_BATCH, described(XNOR_NET, STORED + ', the last before a folded normalization', 5),
    ),
    'binarynet-vgg': (
        lambda: networks.VGGSmall(networks.StoredSignConv), IMAGE, {'opset': 17},
        described(BINARY_NET, 'Sign; stored signs, one layer with the normalization folded into two levels and a bias', 3),
    ),
    'rbnn-resnet20': (
        cifar(networks.NormalizedConv, networks.hardtanh), IMAGE, {'opset': 17},
        described(RBNN, 'Sign of (x - mean of the image) / deviation; weights: the same of each filter', 4),
    ),
    'rbnn-resnet20-dynamo': (
        cifar(networks.NormalizedConv, networks.hardtanh), IMAGE, DYNAMO_18,
        described(RBNN, 'Sign of (x - mean of the image) / deviation; weights: the same of each filter', 4),
    ),
    'fracbnn': (
        networks.FracNet, IMAGE, {'opset': 17},
        described(FRACBNN, 'Less of five axes, Reshape; Sign and Round to 4 levels of one value, chosen by Greater', 3, low_bit=2),
    ),
    'fracbnn-dynamo': (
        networks.FracNet, IMAGE, DYNAMO_18,
        described(FRACBNN, 'Less of five axes, Reshape; Sign and Round to 4 levels of one value, chosen by Greater', 3, low_bit=2),
    ),
    'bnext': (
        networks.SqueezedNet, IMAGE, ANY_BATCH,
        described(BNEXT, 'Sign - Clip + Clip; weights: Sign; Reshape and Transpose of blocks of pixels; gates multiply the result', 3),
    ),
    'bnext-dynamo': (
        networks.SqueezedNet, IMAGE, DYNAMO_18,
        described(BNEXT, 'Sign - Clip + Clip; weights: Sign; Reshape and Transpose of blocks of pixels; gates multiply the result', 3),
    ),
    'bipointnet': (
        networks.PointNet, (3, 32), {'opset': 17},
        described(BIPOINTNET, 'Sign; weights: Sign of centred weights; Transpose and Reshape to a row for each point, MatMul', 3),
    ),
    'dorefa-w1a2': (
        lambda: networks.DoReFaNet(1), IMAGE, TORCHSCRIPT_13,
        described(DOREFA, 'Clip, Round to 4 levels; weights: Sign * mean magnitude of the layer', 0, low_bit=3),
    ),
    'dorefa-w2a2-dynamo': (
        lambda: networks.DoReFaNet(2), IMAGE, DYNAMO_18,
        described(DOREFA, 'Clip, Round to 4 levels; weights: Round of Tanh to 4 levels', 0, low_bit=3),
    ),
    'twn': (
        lambda: networks.TernaryNet(kind='twn'), IMAGE, TORCHSCRIPT_13,
        described('TWN (arXiv:1605.04711)', 'Sign; weights: three levels for each filter by Greater', 0, ternary=2),
    ),
    'ttq': (
        lambda: networks.TernaryNet(kind='ttq'), IMAGE, TORCHSCRIPT_13,
        described(TTQ, 'Sign; weights: two learned levels and 0', 0, ternary=2),
    ),
    'ttq-float-inputs': (
        lambda: networks.TernaryNet(kind='ttq', signs=False), IMAGE, {'opset': 17},
        described(TTQ, 'Relu (real inputs); weights: two learned levels and 0', 0, ternary=0, levels=2),
    ),
    'bwn-float-inputs': (
        lambda: networks.LevelsNet(networks.BWNConv), IMAGE, {'opset': 17},
        described('BWN (arXiv:1603.05279)', 'Relu (real inputs); weights: Sign * mean magnitude', 0, levels=3),
    ),
    **{
        f'lsq-w{bits}a{bits}': (
            lambda bits=bits: networks.LevelsNet(networks.LSQConv, bits=bits), IMAGE, {'opset': 17},
            described('LSQ (arXiv:1902.08153)', f'Div, Clip, Round, Mul to {2**bits} levels, also of weights', 0, levels=3),
        )
        for bits in (3, 4)
    },
    **{
        f'dorefa-w{bits}a{bits}': (
            lambda bits=bits: networks.DoReFaNet(bits, bits), IMAGE, {'opset': 17},
            described(DOREFA, f'Clip, Round to {2**bits} levels; weights: Round of Tanh to {2**bits} levels', 0, levels=3),
        )
        for bits in (3, 4)
    },
    'forms': (networks.FormsNet, IMAGE, {'opset': 17}, described('training code at large', f'{FORM_NAMES}', len(networks.FORMS))),
    'forms-dynamo': (
        networks.FormsNet, IMAGE, DYNAMO_18, described('training code at large', f'{FORM_NAMES}', len(networks.FORMS)),
    ),
    'geometry': (
        networks.GeometryNet, (3, 14, 11), ANY_BATCH,
        described('own', SIMPLE + '; groups, depth-wise, dilation, strides, one-sided Pad, bias, a last Linear layer', 6),
    ),
    'one-dimension': (networks.NetOneDimension, (4, 64), {'opset': 17}, described('own', SIMPLE + '; Conv along time', 2)),
    'three-dimensions': (networks.NetThreeDimensions, (2, 4, 16, 16), {'opset': 17}, described('own', SIMPLE + '; Conv over a volume', 2)),
    'detector': (
        networks.Detector, (3, 32, 32), {'opset': 17, 'outputs': ('boxes', 'scores', 'features'), 'dynamic': True},
        described('own', POLYNOMIAL + '; three outputs, Resize; the first signs are 0 and 1, after Relu', 2),
    ),
    'segmenter': (networks.Segmenter, IMAGE, {'opset': 17}, described('own', POLYNOMIAL + '; DepthToSpace, Resize, Softmax', 3)),
    'segmenter-dynamo': (networks.Segmenter, IMAGE, DYNAMO_18, described('own', POLYNOMIAL + '; DepthToSpace, Resize, Softmax', 3)),
    'sign-after-relu': (
        networks.ReluSignNet, IMAGE, TORCHSCRIPT_13, described('own', SIMPLE + '; Sign after Relu: inputs are 0 and 1', 2),
    ),
    'zero-weight': (
        networks.zero_in_weights, IMAGE, TORCHSCRIPT_13,
        described('own', SIMPLE + '; one weight is 0, so Sign gives three levels', 0, ternary=1, refuse='a third level of the weights'),
    ),
    'padded-with-one': (
        lambda: networks.padded_with(1.0), IMAGE, TORCHSCRIPT_13,
        described('own', 'Sign, Pad with 1, Conv; weights: Where(w >= 0, 1, -1)', 2),
    ),
    'padded-with-minus-one': (
        lambda: networks.padded_with(-1.0), IMAGE, DYNAMO_18, described('own', 'Sign, Pad with -1, Conv; weights: Where(w >= 0, 1, -1)', 2),
    ),
    'constant-border': (
        networks.ConstantBorderNet, IMAGE, TORCHSCRIPT_13,
        described('own', SIMPLE + '; Pad before normalization and Sign: a border of either sign for each channel', 1),
    ),
    'transformer': (
        networks.VisionTransformer, IMAGE, {'opset': 17},
        described(BIBERT, TOKEN_FORM + '; patches, a class token, attention by MatMul and Softmax, Erf', 8),
    ),
    'transformer-dynamo': (
        networks.VisionTransformer, IMAGE, DYNAMO_18,
        described(BIBERT, TOKEN_FORM + '; patches, a class token, attention by MatMul and Softmax, Gelu', 8),
    ),
    'transformer-bool': (
        lambda: networks.VisionTransformer(bits=True, token=False), IMAGE, ANY_BATCH,
        described(BIBERT, TOKEN_FORM + '; signs of queries, keys and values, probabilities 0 and 1', 8),
    ),
    'mixer': (networks.Mixer, (12, 20), {'opset': 17}, described('own', TOKEN_FORM + '; MLP-Mixer of a sequence', 8)),
    'mixer-rms-dynamo': (
        lambda: networks.Mixer(torch.nn.RMSNorm, 'tanh'), (12, 20), DYNAMO_18,
        described('own', TOKEN_FORM + '; MLP-Mixer with normalization by the mean square, GELU by Tanh', 8),
    ),
    'keyword-spotter': (
        networks.KeywordSpotter, (20, 30), {'opset': 17},
        described('own', SIMPLE + '; convolutions along time, MultiheadAttention, Softmax of the frames', 2),
    ),
    'keyword-spotter-dynamo': (
        networks.KeywordSpotter, (20, 30), DYNAMO_18,
        described('own', SIMPLE + '; convolutions along time, MultiheadAttention, Softmax of the frames', 2),
    ),
    'frames': (
        networks.FramesNet, (40, 20), ANY_BATCH | {'outputs': ('frames', 'last')},
        described('own', TOKEN_FORM + '; the output is a sequence', 2),
    ),
    'recurrent': (networks.RecurrentNet, (10, 20), {'opset': 17}, described('own', TOKEN_FORM + '; a GRU', 1)),
    'float-only': (networks.float_only, IMAGE, TORCHSCRIPT_13, described('own', 'no binary layer', 0, refuse='no binary layer')),
}  # fmt: skip


def prepare(model, shape, images=32):
    """Give the normalizations the approximate statistics of random inputs and factors of both signs, and set the mode for inference."""
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
        model(4 * torch.rand(images, *shape) - 2)
        for norm in norms:
            norm.running_mean += 0.2 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
            norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.6, 1.7)
            norm.running_var += 0.01
    for value in itertools.chain(model.parameters(), *(norm.buffers() for norm in norms)):
        if value.is_floating_point():
            value.data = value.data.bfloat16().float()  # compresses better
    return model.eval()


def export(model, example, path, opset, dynamo=False, dynamic=False, outputs=('output',), external=False, any_size=False):
    """Write `model` with one of PyTorch's exporters and return the name of the exporter."""
    if dynamo and dynamic:  # the newer exporter takes an axis of length one as constant
        example = torch.cat([example, example])
    options = {'input_names': ['input'], 'output_names': list(outputs), 'opset_version': opset, 'dynamo': dynamo}
    if dynamo:
        options |= {'dynamic_shapes': ({0: torch.export.Dim('batch')},) if dynamic else None, 'external_data': external}
    elif dynamic:
        options['dynamic_axes'] = {name: {0: 'batch'} for name in ('input', *outputs)}
        if any_size:
            options['dynamic_axes']['input'] |= {2: 'height', 3: 'width'}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(model, (example,), str(path), verbose=False, **options)
    if external and not dynamo:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location=f'{path.name}.data', size_threshold=256)
    if dynamo:
        remove_metadata(path)
    batch = f'any batch{" and size" if any_size else ""}' if dynamic else 'batch 1'
    return f'torch.onnx {"dynamo" if dynamo else "TorchScript"}, {batch}'


def remove_metadata(path):
    """Remove what the newer exporter writes beside each node and value: lines of Python code, paths and names of modules."""
    model = onnx.load(path, load_external_data=False)
    for item in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del item.metadata_props[:]
    onnx.save(model, path)


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
    path = recording.WORK / f'{name}.onnx'
    exporter = export(model, torch.zeros(1, *shape), path, **options)
    if optimized:
        optimize(path)
        exporter += f', optimized by ONNX Runtime {onnxruntime.__version__}'
    inputs = recording.choose_inputs(name, [(2, *shape)])
    with torch.no_grad():
        outputs = model(torch.from_numpy(inputs[0]))
    outputs = [tensor.numpy() for tensor in (outputs if isinstance(outputs, tuple) else (outputs,))]
    recording.record(name, inputs, [np.ascontiguousarray(array) for array in outputs], exporter=exporter, **facts)


if __name__ == '__main__':
    for name in sys.argv[1:] or MODELS:
        make(name, *MODELS[name])
