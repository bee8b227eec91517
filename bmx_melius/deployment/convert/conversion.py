"""Conversion of exported files and of live networks. The steps are listed in `bmx_melius.deployment.convert.packing`."""

import os
from typing import Optional, Sequence, Union

import mxnet as mx
import numpy as np

from ...arguments import require_names_in_lists
from ...errors import UserError, last_line, name_some
from ...files.exported import Description, Exported
from ...files.parameters import is_parameter_file, read_arrays
from ...files.symbol_json import SymbolJson
from ...graph.nodes import InputShape, shapes_by_name
from ...graph.tracing import load_symbol, symbol_of
from ...reporting import LOG
from ...vision.classifier import number_of_classes, require_names
from ...vision.preprocessing import InputSpec
from .calibration import LayerOptions
from .calibration_images import with_images
from .packing import pack
from .report import Report
from .traced_network import TracedNetwork

Path = Union[str, os.PathLike]


def convert(
    symbol_file: Path,
    params_file: Path,
    prefix: Path,
    input_shape: InputShape,
    verify: bool = True,
    half: bool = False,
    input_spec: Optional[InputSpec] = None,
    class_names: Optional[Sequence[str]] = None,
    calibration: 'Union[np.ndarray, Path, None]' = None,
    ranges: str = LayerOptions.ranges,
    keep_float: Sequence[str] = (),
    min_correlation: float = LayerOptions.min_correlation,
) -> Report:
    """Convert an exported network and write PREFIX-symbol.json and PREFIX-0000.params.

    MXNet loads the files like any exported network after ``import bmx_melius``; `bmx_melius.Session` runs them without MXNet if the
    whole network could be converted. They accept any batch size and any input size that the network allows. The symbol also contains the
    description of the network, with the preprocessing of images and the class names, which `Session.classify` needs.

    Parameters
    ----------
    symbol_file, params_file : path
        Files written by ``HybridBlock.export`` or ``Module.save_checkpoint``.
    prefix : path
        Prefix of the files to write.
    input_shape : tuple of int, or dict of str to tuple of int
        Shape of the input, batch included; for a network with several inputs a dict from input name to shape.
    verify : bool
        Compare each layer with MXNet on a random sample.
    half : bool
        Store the weights of float convolutions and dense layers in half precision.
    input_spec : InputSpec or None
        Preprocessing of images. Default: from the description of the network, NAME-summary.json beside NAME-symbol.json.
    class_names : sequence of str or None
        Names of the classes. Default: from the description of the network.
    calibration : numpy.ndarray, path or None
        Images on which real-valued layers are converted to layers of 8-bit integers (post-training quantization): inputs, float32
        (N, C, H, W); pixels, uint8; or a folder, record file, dataset or .npy file, see `calibration_images.calibration_batches`. Binary
        layers stay as they are. Without them, real-valued layers compute in float32.
    ranges : str
        How the range of the 8-bit inputs of a layer is chosen: ``'mse'``, of the smallest squared error; ``'percentile'``, 99.99 % of the
        numbers on each side; ``'minmax'``, all numbers.
    keep_float : sequence of str
        With `calibration`, real-valued layers that remain float32, by the names in the report (``report.quantization.changes``).
    min_correlation : float
        Lowest correlation of the outputs with 8-bit layers and with float layers, on the calibration images, and lowest share of
        the images that the outputs tell apart. Below, the images or their preprocessing do not fit the network, or its layers need
        more than 8 bits. -1: any.

    Returns
    -------
    Report

    Raises
    ------
    UserError
        If a file, parameter or node cannot be converted; the message names it. If `class_names` are not one for each class. If there are
        no calibration images, `half` is set with them, or the correlation is below `min_correlation`. If `keep_float` has another name, or
        there is no `calibration`. No file is written.
    OSError
        If a file cannot be written.

    Examples
    --------
    >>> import mxnet as mx
    >>> import bmx_melius as bmx
    >>> net = bmx.BinaryConv2D(64, kernel_size=3, padding=1)
    >>> net.initialize()
    >>> net.hybridize()
    >>> _ = net(mx.nd.random.normal(shape=(1, 32, 8, 8)))
    >>> net.export('net')
    >>> report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 32, 8, 8))
    >>> report.packed_operators, report.binary_layers
    (1, 1)
    """
    require_names_in_lists(class_names=class_names, keep_float=keep_float)
    symbol_file, params_file, exported = os.fspath(symbol_file), os.fspath(params_file), Exported(prefix)
    written_symbol, written_params = exported.symbol_file, exported.parameter_file(0)
    for source in (symbol_file, params_file):
        for target in (written_symbol, written_params):
            if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
                raise UserError(f'{target} would overwrite the network that is converted: choose another prefix')
    exported.require_writable()
    fields = _description(Exported(symbol_file), input_spec, class_names)
    if is_parameter_file(symbol_file):
        swapped = '' if is_parameter_file(params_file) else '; did you swap the first two?'
        raise UserError(f'{symbol_file} is not a symbol, it holds parameters{swapped}')
    symbol = load_symbol(symbol_file)
    arrays = read_arrays(params_file)
    shapes = _shapes(symbol, arrays, input_shape)
    spec = Description(fields, 'the description').input_spec()
    layers = with_images(LayerOptions(half, calibration, ranges, keep_float, min_correlation), spec)
    packed = pack(TracedNetwork(symbol, arrays, shapes), verify, layers, spec)
    if class_names is not None:
        _, outputs, _ = symbol.infer_shape(**shapes)
        require_names(class_names, number_of_classes([(1, *shape[1:]) for shape in outputs], symbol_file), 'class_names')
    exported.write_symbol(packed.symbol, packed.arrays, fields)
    report = packed.report
    report.symbol_file, report.params_file = written_symbol, written_params
    report.size_before, report.size_after = os.path.getsize(params_file), os.path.getsize(written_params)
    return report


def _description(source, input_spec, class_names):
    """Return the fields of the description of an `Exported`, with other preprocessing or class names if they are not None."""
    fields = dict(source.description().fields)
    if input_spec is not None:
        fields['input'] = input_spec.to_json()
    if class_names is not None:
        fields['class_names'] = list(class_names)
    Description(fields, 'class_names').class_names()  # raises an error unless they are names
    return fields


def deploy(net: mx.gluon.HybridBlock, input_shape: InputShape) -> mx.gluon.SymbolBlock:
    """Convert a live network or layer to a packed block for inference.

    Parameters
    ----------
    net : mxnet.gluon.HybridBlock
        An initialized block. The input of a single `QConv2D` or `QDense` must be signs.
    input_shape : tuple of int, or dict of str to tuple of int
        Shape of the input, batch included; for a network with several inputs a dict from input name to shape, in the order of the inputs.

    Returns
    -------
    mxnet.gluon.SymbolBlock

    Raises
    ------
    UserError
        If the block is not initialized, does not accept the input shape, or cannot be converted.

    Examples
    --------
    >>> import mxnet as mx
    >>> import bmx_melius as bmx
    >>> layer = bmx.QConv2D(64, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> signs = mx.nd.sign(mx.nd.random.normal(shape=(1, 32, 8, 8)))
    >>> packed = bmx.deploy(layer, signs.shape)
    >>> bool((packed(signs) == layer(signs)).min().asscalar())
    True
    """
    shapes = shapes_by_name(input_shape)
    try:
        net(*[mx.nd.zeros(shape) for shape in shapes.values()])  # completes deferred initialization
        arrays = {name: parameter.data().asnumpy() for name, parameter in net.collect_params().items()}
    except (RuntimeError, ValueError, mx.MXNetError) as error:  # not initialized, or an input that does not fit
        raise UserError(f'{type(net).__name__} does not run on an input of shape {input_shape}: {last_line(error)}') from error
    packed = pack(TracedNetwork(symbol_of(net, list(shapes)), arrays, shapes), False, LayerOptions())
    if packed.report.float_signs:
        LOG.warning('%s', packed.report.not_binary())
    block = mx.gluon.SymbolBlock(mx.sym.load_json(packed.symbol), [mx.sym.var(name) for name in packed.input_names])
    values = {name.partition(':')[2]: array for name, array in packed.arrays.items()}
    for name, parameter in block.collect_params().items():
        parameter.dtype, parameter.shape, parameter.grad_req = values[name].dtype, values[name].shape, 'null'
        parameter.initialize(mx.init.Zero())
        parameter.set_data(mx.nd.array(values[name], dtype=values[name].dtype))
    return block


def _shapes(symbol, arrays, input_shape):
    """Return a dict from the name of each input to its shape."""
    if isinstance(input_shape, dict):
        return shapes_by_name(input_shape)
    nodes = SymbolJson.of(symbol).nodes
    labels = {nodes[source]['name'] for node in nodes if node['op'].endswith('Output') for source, *_ in node['inputs'][1:]}
    names = [name for name in symbol.list_arguments() if name not in arrays and name not in labels]
    if len(names) != 1:
        attributes = symbol.attr_dict()  # Gluon sets __lr_mult__ on parameters only, not on inputs
        names = [name for name in names if '__lr_mult__' in attributes.get(name, ())] or names
        raise UserError(
            f'the parameter file lacks {name_some(names)}: give the one that was exported with this symbol, and the shape of each input '
            'by its name where there are several'
            if names
            else 'the parameter file holds all variables of the symbol, so none is left to be the input'
        )
    return shapes_by_name(input_shape, names[0])
