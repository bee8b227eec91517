"""Rows of a comparison: one row of data for each timed configuration."""

import dataclasses
import importlib.util
from types import ModuleType

from .peers import (
    larq_meliusnet,
    litert_mobilenet,
    mxnet_convolution,
    mxnet_float,
    mxnet_packed,
    mxnet_zoo,
    onnx_mobilenet,
    onnx_model,
    openvino_convolution,
    session,
)

WIDTHS = (0.5, 0.75, 1.0)  # width multipliers of the MobileNets
LAYERS = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and size of the single convolutions: the stages of ResNet18
BATCH = 32  # batch size of the throughput row
_MXNET = {'MXNET_USE_OPERATOR_TUNING': '0'}  # with tuning most operators use one thread
_MXNET_AVX2 = {**_MXNET, 'DNNL_MAX_CPU_ISA': 'AVX2', 'MKLDNN_MAX_CPU_ISA': 'AVX2'}  # the new and the old name of the variable


@dataclasses.dataclass(frozen=True)
class Row:
    """One timed configuration.

    Attributes
    ----------
    key : str
        Name in the results.
    title : str
        Name in the table.
    group : str
        One of `GROUPS`, as given to ``--compare``.
    peer : module of `bmx_melius.bench.peers`
    input_shape : tuple of int
    threads : int
    arguments : dict
        Arguments of the peer.
    environment : dict of str to str
        Environment variables of its process.
    """

    key: str
    title: str
    group: str
    peer: ModuleType
    input_shape: tuple
    threads: int
    arguments: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)

    def missing_packages(self):
        """Return the names of the packages to install, an empty list if the row can run."""
        return [package for module, package in self.peer.PACKAGES.items() if importlib.util.find_spec(module) is None]


GROUPS = ('packed', 'mxnet', 'onnxruntime', 'litert', 'openvino', 'larq')


def network_rows(prefix, exported, input_shape, threads, forms=()):
    """Return rows of a packed network and of the float network.

    Parameters
    ----------
    prefix : str
        Of the packed files, which run in `Session` and in MXNet.
    exported : str or None
        Prefix of the exported files, if there are any.
    input_shape : tuple of int
    threads : int
    forms : sequence of tuple (name, title, prefix)
        Other packed forms of the network, to run in `Session`.
    """
    batch = (BATCH, *input_shape[1:])
    packed = {'prefix': prefix}
    rows = [
        Row('packed', 'bmx-melius', 'packed', session, input_shape, threads, packed),
        Row('packed two threads', 'bmx-melius, two threads', 'packed', session, input_shape, 2, packed),
        Row(f'packed batch {BATCH}', f'bmx-melius, batch of {BATCH}', 'packed', session, batch, threads, packed),
        Row('packed in mxnet', 'bmx-melius in MXNet', 'packed', mxnet_packed, input_shape, threads, packed, _MXNET),
    ]
    for name, title, other in forms:
        rows.append(Row(f'packed {name}', f'bmx-melius, {title}', 'packed', session, input_shape, threads, {'prefix': other}))
    if threads != 1:
        rows.append(Row('packed one thread', 'bmx-melius, one thread', 'packed', session, input_shape, 1, packed))
    if exported is not None:
        forms = {'exported': 'as exported', 'folded': 'weights and activations folded', 'thresholds': 'thresholds folded'}
        for form, title in forms.items():
            arguments = {'prefix': exported, 'form': form}
            rows.append(Row(f'mxnet float {form}', f'MXNet float, {title}', 'mxnet', mxnet_float, input_shape, threads, arguments, _MXNET))
    return rows


def onnx_rows(prefix, model_file, input_shape, threads):
    """Return rows of an ONNX model: of the packed network that was imported from it, and of the model itself in ONNX Runtime."""
    file = {'file': model_file}
    return [
        Row('packed', 'bmx-melius', 'packed', session, input_shape, threads, {'prefix': prefix}),
        Row('onnxruntime model', 'ONNX Runtime, the ONNX model', 'onnxruntime', onnx_model, input_shape, threads, file),
    ]


def busy_rows(prefix, input_shape):
    """Return rows of the packed network to time while other programs keep every core busy."""
    names = {1: 'one thread', 2: 'two threads'}
    return [
        Row(f'busy {name}', f'bmx-melius, {name}, cores busy', 'packed', session, input_shape, threads, {'prefix': prefix})
        for threads, name in names.items()
    ]


def mobilenet_rows(input_shape, threads):
    """Return rows of float and int8 networks in other libraries."""
    rows = []
    for network in (*(f'mobilenet{width}' for width in WIDTHS), 'resnet18_v1'):
        for fused in (False, True):
            name = f'{network}{" fused" if fused else ""}'
            arguments = {'network': network, 'fused': fused}
            rows.append(Row(f'mxnet {name}', f'MXNet {name}', 'mxnet', mxnet_zoo, input_shape, threads, arguments, _MXNET))
    for library, title, peer in (('onnxruntime', 'ONNX Runtime', onnx_mobilenet), ('litert', 'LiteRT', litert_mobilenet)):
        for int8 in (False, True):
            for width in WIDTHS:
                name = f'mobilenet{width}{" int8" if int8 else ""}'
                arguments = {'width': width, 'int8': int8}
                rows.append(Row(f'{library} {name}', f'{title} {name}', library, peer, input_shape, threads, arguments))
    for best in (False, True):
        settings = 'best settings' if best else 'default'
        title = f'Larq Compute Engine meliusnet22, {settings}'
        rows.append(Row(f'larq meliusnet22 {settings}', title, 'larq', larq_meliusnet, input_shape, threads, {'best': best}))
    return rows


def layer_rows(threads):
    """Return rows of single convolutions; binary convolutions include the binarization of their float32 input."""
    rows = []
    for channels, size in LAYERS:
        name, shape = f'{channels}@{size}', (1, channels, size, size)
        arguments, avx2 = {'channels': channels}, {'BMX_MELIUS_ISA': 'avx2'}
        rows += [
            Row(f'layer {name}', f'binary 3x3 {name}, bmx-melius', 'packed', session, shape, threads, arguments),
            Row(f'layer {name} openvino', f'binary 3x3 {name}, OpenVINO', 'openvino', openvino_convolution, shape, threads),
            Row(f'layer {name} avx2', f'binary 3x3 {name}, bmx-melius AVX2', 'packed', session, shape, threads, arguments, avx2),
            Row(
                f'layer {name} mxnet avx2',
                f'float 3x3 {name}, MXNet AVX2',
                'mxnet',
                mxnet_convolution,
                shape,
                threads,
                arguments,
                _MXNET_AVX2,
            ),
        ]
    return rows
