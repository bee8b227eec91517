"""The teacher of a distillation: a trained network whose answers another one learns."""

import os

import mxnet as mx
from mxnet import gluon

from ..errors import UserError, last_line
from ..exported import Exported


def load_teacher(get_model, name, classes, input_shape, devices, params=None, pretrained=False, arguments=None):
    """Find, build and load a network; its answers are not differentiated.

    Parameters
    ----------
    get_model : function
        As `model_zoo.get_model`.
    name : str
        A prefix: ``PREFIX-symbol.json`` and ``PREFIX-0000.params`` are an exported network. Or a name that `get_model`
        knows.
    classes : int
    input_shape : tuple of int
        (C, H, W) of the images it will see.
    devices : list of mx.Context
    params : str or None
        File of weights for `load_parameters`, of a network by name.
    pretrained : bool or str
        Take published weights instead, as `get_model` does; they are downloaded if they are not in ~/.mxnet/models.
    arguments : dict or None
        Further arguments of a network by name.

    Returns
    -------
    gluon.HybridBlock: images -> logits (N, classes).

    Raises
    ------
    UserError
        When there is no such network, or no weights, or they do not fit the data.
    """
    files = Exported(name)
    exported = os.path.isfile(files.symbol_file)
    if exported and (params or pretrained or arguments):
        raise UserError(
            f'--teacher {name} is an exported network and has its weights with it: leave out --teacher-params, '
            '--teacher-pretrained and --teacher-options'
        )
    if not exported and bool(params) == bool(pretrained):
        raise UserError(
            f'--teacher {name} needs weights: give --teacher-params FILE or --teacher-pretrained (downloaded if they are not '
            'in ~/.mxnet/models), or the prefix of an exported network as --teacher'
        )
    try:
        if exported:
            net = gluon.SymbolBlock.imports(files.symbol_file, ['data'], files.parameter_file(0), ctx=devices)
        else:
            net = get_model(name, pretrained=pretrained, classes=classes, ctx=devices, **(arguments or {}))
            if params:
                net.load_parameters(params, ctx=devices)
        net.hybridize()
        answer = net(mx.nd.zeros((1, *input_shape), ctx=devices[0])).shape
    except UserError:
        raise
    except (AssertionError, OSError, RuntimeError, TypeError, ValueError, mx.MXNetError) as error:
        raise UserError(f'--teacher {name} cannot be used: {last_line(error)}') from error
    if answer != (1, classes):
        raise UserError(f'--teacher {name} answers with shape {answer[1:]}; the {classes} classes of the data need ({classes},)')
    return net
