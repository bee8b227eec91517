"""Loading of the teacher network of a distillation."""

import os
import warnings

import mxnet as mx
from mxnet import gluon

from ..errors import UserError, last_line
from ..files.exported import Exported
from ..files.parameters import read_parameters
from ..graph.tracing import load_symbol


def load_teacher(get_model, name, classes, input_shape, devices, params=None, pretrained=False, arguments=None, flag='--teacher'):
    """Build or import the teacher network and load its weights.

    Parameters
    ----------
    get_model : function
        Function with the interface of `model_zoo.get_model`.
    name : str
        Prefix of an exported network, ``PREFIX-symbol.json`` and ``PREFIX-0000.params``, or a name known to `get_model`.
    classes : int
    input_shape : tuple of int
        Shape (C, H, W) of the images.
    devices : list of mx.Context
    params : str or None
        File of weights for `load_parameters`, for a network given by name.
    pretrained : bool or str
        Use published weights instead, as in `get_model`; they are downloaded if they are not in ~/.mxnet/models. Without `params` a network
        given by name has GluonCV's weights, as in GluonCV's training script.
    arguments : dict or None
        Further arguments of `get_model`.
    flag : str
        What names the network in messages.

    Returns
    -------
    gluon.HybridBlock
        Maps images to logits (N, classes).

    Raises
    ------
    UserError
        When the network or its weights do not exist, or do not match the data.
    """
    files = Exported(name)
    exported = os.path.isfile(files.symbol_file)
    if exported and (params or pretrained or arguments):
        raise UserError(
            f'--teacher {name} is an exported network, which includes its weights: leave out --teacher-params, '
            '--teacher-pretrained and --teacher-options'
        )
    if params and pretrained:
        raise UserError('--teacher-params and --teacher-pretrained both select the weights of the teacher: give only one of them')
    try:
        if exported:
            load_symbol(files.symbol_file)  # refuses what MXNet would execute
            read_parameters(files.parameter_file(0))
            with warnings.catch_warnings():
                warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input, which is float32
                net = gluon.SymbolBlock.imports(files.symbol_file, ['data'], files.parameter_file(0), ctx=devices)
        else:
            net = get_model(name, pretrained=pretrained or not params, classes=classes, ctx=devices, **(arguments or {}))
            if params:
                read_parameters(params)  # refuses damaged files, for which MXNet allocates whatever they announce
                net.load_parameters(params, ctx=devices)
        net.hybridize()
        answer = net(mx.nd.zeros((1, *input_shape), ctx=devices[0])).shape
    except UserError as error:
        if exported or params or pretrained:
            raise
        if flag != '--teacher':
            raise UserError(f'{flag} {name} needs weights: give the prefix of an exported network ({error})') from error
        raise UserError(
            f'--teacher {name} needs weights: give --teacher-params FILE, --teacher-pretrained larq, or the prefix of an exported network '
            f'as --teacher ({error})'
        ) from error
    except (AssertionError, OSError, RuntimeError, TypeError, ValueError, mx.MXNetError) as error:
        raise UserError(f'{flag} {name} cannot be used: {last_line(error)}') from error
    if answer != (1, classes):
        raise UserError(f'{flag} {name} has outputs of shape {answer[1:]}; the {classes} classes of the data require ({classes},)')
    return net
