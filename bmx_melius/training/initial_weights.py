"""Initial weights of a new run: random ones, published ones, or those of another run; and which of them are trained, at which rate."""

import math
import zlib

import mxnet as mx
import numpy as np

from ..analysis.finiteness import find_not_finite
from ..errors import UserError, last_line
from ..files.parameters import read_arrays
from ..nn.fine_tuning import freeze, load_weights, name_some
from .network import INITIALIZERS, seed_generators
from .options.inherited import describe_differences
from .saving.stored_checkpoints import verify_file

OTHER_NETWORK = 'give the flags that it was trained with, such as --model, --model-options and --initial-layers, or use other weights'


def load_initial_weights(config, get_model, net, model):
    """Load the weights that ``--resume-params`` or ``--use-pretrained`` select into an initialized network.

    Parameters
    ----------
    config : RunConfig
    get_model : function
        Function with the interface of `model_zoo.get_model`.
    net : gluon.HybridBlock
    model : dict
        Arguments of `get_model`.

    Returns
    -------
    new : list of str or None
        Parameters that were not loaded; None if there are no weights to load.
    text : str or None
        What was loaded, for the plan of the run.

    Raises
    ------
    UserError
        When the weights do not exist, are of another network, or are NaN or infinite.
    """
    if config.resume_params:
        source, arrays = config.resume_params, _read(config.resume_params)
    elif config.network.use_pretrained:
        source, arrays = _describe_pretrained(config.network), _fetch(config.network, get_model, model)
    else:
        return None, None
    flag = '--resume-params' if config.resume_params else '--use-pretrained'
    try:
        loaded = load_weights(net, arrays, model['classes'])
    except UserError as error:
        differences = config.resume_params and describe_differences(config.resume_params, model)
        raise UserError(f'{flag}: {source} does not fit {config.network.model}: {error}; {differences or OTHER_NETWORK}') from error
    wrong = find_not_finite(net)
    if wrong:
        raise UserError(f'{flag}: {source}: {wrong} has values that are NaN or infinite, so the training diverged; use other weights')
    for name, unused in loaded.unused.items():
        _initialize_anew(config, net._collect_params_with_prefix()[name], name, unused)
    differences = config.resume_params and describe_differences(config.resume_params, model)
    return loaded.new, f'{source}: {loaded}' + (f'; {differences}' if differences else '')


def set_trained(config, net):
    """Apply ``--freeze`` and ``--pretrained-lr-factor``; return a line about the frozen parameters for the plan, or None.

    Parameters
    ----------
    config : FineTuningConfig
        Its `new_parameters` are trained at the full rate.
    net : gluon.HybridBlock
    """
    parameters = net._collect_params_with_prefix()
    for name, parameter in parameters.items():
        if name not in (config.new_parameters or ()):
            parameter.lr_mult *= config.pretrained_lr_factor
    if config.freeze is None:
        return None
    try:
        frozen = freeze(net, config.freeze)
    except UserError as error:
        raise UserError(f'--freeze {config.freeze}: {error}') from error
    trained = [name for name, parameter in parameters.items() if parameter.grad_req != 'null']
    values, all_values = (sum(math.prod(parameters[name].shape) for name in names) for names in (frozen, parameters))
    return (
        f'{len(frozen)} of {len(parameters)} parameters ({values:,} of {all_values:,} values): {name_some(frozen)}; '
        f'trained: {name_some(trained)}'
    )


def _initialize_anew(config, parameter, name, unused):
    """Initialize a parameter of a new output layer with random numbers that differ from those in the weights.

    With the seed of a run that starts from random weights, the layer would have the initial values of the output layer in the weights if
    that was trained with the same ``--seed``: its first classes would begin with features that were trained for other classes. The seed is
    therefore derived from that of the run, the name, and the `unused` array of the weights, which differs in each of several trainings.
    """
    values = unused.asnumpy() if isinstance(unused, mx.nd.NDArray) else np.ascontiguousarray(unused)
    seed_generators(config.seed, *(zlib.crc32(content) for content in (name.encode(), values.tobytes())))
    parameter.initialize(default_init=INITIALIZERS[config.network.initialization], ctx=parameter.list_ctx(), force_reinit=True)


def _read(file):
    try:
        verify_file(file)
        return read_arrays(file)
    except UserError as error:
        raise UserError(f'--resume-params: {error}') from error


def _fetch(network, get_model, model):
    """Return the arrays of published weights, which may be of another number of classes."""
    try:
        published = get_model(**{**model, 'classes': None}, pretrained=network.use_pretrained, ctx=mx.cpu())
    except (AssertionError, OSError, RuntimeError) as error:
        raise UserError(f'--use-pretrained: no weights of {network.model}: {last_line(error)}') from error
    return {name: parameter.data() for name, parameter in published._collect_params_with_prefix().items()}


def _describe_pretrained(network):
    source = 'GluonCV' if network.use_pretrained is True else network.use_pretrained
    return f'{network.model} of {source}'
