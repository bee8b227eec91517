"""Loading of the teacher network of a distillation."""

import dataclasses
import os
import warnings
from typing import Optional, Sequence, Union

import mxnet as mx
from mxnet import gluon

from ..errors import UserError, last_line
from ..files.exported import Exported
from ..files.parameters import read_parameters
from ..graph.tracing import load_symbol


@dataclasses.dataclass(frozen=True)
class TeacherOptions:
    """The teachers of a distillation, by the flags with the names of the fields. The defaults are GluonCV's."""

    teacher: Optional[str] = None  # prefix of an exported network, PREFIX-symbol.json and PREFIX-0000.params, or a name for `get_model`
    temperature: float = 20.0
    hard_weight: float = 0.5  # of the labels
    attention_weight: float = 0.0  # of `AttentionTransfer`; 0: without
    assistants: Optional[Sequence[str]] = None  # second teachers, each for an equal part of `num_epochs`
    teacher_params: Optional[str] = None  # file of the weights of a network given by name; by default they are GluonCV's
    teacher_pretrained: Union[bool, str] = False  # published weights instead, as in `get_model`, which may download them
    teacher_options: Optional[dict] = None  # further arguments of `get_model`
    num_epochs: Optional[int] = None


def load_teacher(get_model, options, classes, input_shape, devices, flag='--teacher'):
    """Build or import the teacher network and load its weights.

    Parameters
    ----------
    get_model : function
        Function with the interface of `model_zoo.get_model`.
    options : TeacherOptions
    classes : int
    input_shape : tuple of int
        Shape (C, H, W) of the images.
    devices : list of mx.Context
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
    name, params, pretrained = options.teacher, options.teacher_params, options.teacher_pretrained
    files = Exported(name)
    exported = os.path.isfile(files.symbol_file)
    if exported and (params or pretrained or options.teacher_options):
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
            net = get_model(name, pretrained=pretrained or not params, classes=classes, ctx=devices, **(options.teacher_options or {}))
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
