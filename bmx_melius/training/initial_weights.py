"""Initial weights of a new run: random, published, or from another run; and which of them are trained, at which rate."""

import math
import zlib

import mxnet as mx
import numpy as np

from ..analysis.finiteness import find_not_finite
from ..errors import UserError, last_line, name_some
from ..files.parameters import read_arrays
from ..nn.fine_tuning import freeze, load_weights
from .network import INITIALIZERS, seed_generators
from .options.inherited import describe_differences
from .recording.plan import describe_check
from .saving.stored_checkpoints import verify_file

OTHER_NETWORK = (
    'give the flags that it was trained with, such as --model, --model-options, --initial-layers and --channels (1 for gray images), '
    'or use other weights'
)


def start_weights(options, get_model, net, model, images):
    """Load the weights from which a new run starts into an initialized network, and select which are trained.

    Parameters
    ----------
    options : TrainingOptions
        Gets the `new_parameters` of a new run.
    get_model, net, model
        As in `load_initial_weights`.
    images : iterable of (NDArray, NDArray), optional
        Batches on the first of which the network of a new run is checked.

    Returns
    -------
    dict of str to (str or None)
        Lines of the plan of the run: heading -> text.
    """
    notes = {}
    if not options.resume:
        options.new_parameters, notes['weights'] = load_initial_weights(options, get_model, net, model)
    notes['frozen'] = set_trained(options, net)
    if images is not None and not options.resume:
        notes['check'] = describe_check(net, images, options)
    return notes


def load_initial_weights(options, get_model, net, model):
    """Load the weights that ``--resume-params`` or ``--use-pretrained`` select into an initialized network.

    Parameters
    ----------
    options : TrainingOptions
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
    if options.resume_params:
        source, arrays = options.resume_params, _read(options.resume_params)
    elif options.use_pretrained:
        source, arrays = _describe_pretrained(options), _fetch(options, get_model, model)
    else:
        return None, None
    flag = '--resume-params' if options.resume_params else '--use-pretrained'
    try:
        loaded = load_weights(net, arrays, model['classes'])
    except UserError as error:
        differences = options.resume_params and describe_differences(options.resume_params, model)
        raise UserError(f'{flag}: {source} does not fit {options.model}: {error}; {differences or OTHER_NETWORK}') from error
    wrong = find_not_finite(net)
    if wrong:
        raise UserError(f'{flag}: {source}: {wrong} has values that are NaN or infinite, so the training diverged; use other weights')
    for name, unused in loaded.unused.items():
        _initialize_anew(options, net._collect_params_with_prefix()[name], name, unused)
    differences = options.resume_params and describe_differences(options.resume_params, model)
    return loaded.new, f'{source}: {loaded}' + (f'; {differences}' if differences else '')


def set_trained(options, net):
    """Apply ``--freeze`` and ``--pretrained-lr-factor``; return a line about the frozen parameters for the plan, or None.

    Parameters
    ----------
    options : TrainingOptions
        Its `new_parameters` are trained at the full rate.
    net : gluon.HybridBlock
    """
    parameters = net._collect_params_with_prefix()
    for name, parameter in parameters.items():
        if name not in (options.new_parameters or ()):
            parameter.lr_mult *= options.pretrained_lr_factor
    if options.freeze is None:
        return None
    try:
        frozen = freeze(net, options.freeze)
    except UserError as error:
        raise UserError(f'--freeze {options.freeze}: {error}') from error
    trained = [name for name, parameter in parameters.items() if parameter.grad_req != 'null']
    values, all_values = (sum(math.prod(parameters[name].shape) for name in names) for names in (frozen, parameters))
    return (
        f'{len(frozen)} of {len(parameters)} parameters ({values:,} of {all_values:,} values): {name_some(frozen)}; '
        f'trained: {name_some(trained)}'
    )


def _initialize_anew(options, parameter, name, unused):
    """Initialize a parameter of a new output layer with random numbers that differ from the weights.

    With the seed of a run that starts from random weights, the layer would have the initial values of the output layer in the weights if
    that was trained with the same ``--seed``: its first classes would begin with features that were trained for other classes. The seed is
    therefore derived from the seed of the run, the name, and the `unused` array of the weights, which differs in each of several trainings.
    """
    values = unused.asnumpy() if isinstance(unused, mx.nd.NDArray) else np.ascontiguousarray(unused)
    seed_generators(options.seed, *(zlib.crc32(content) for content in (name.encode(), values.tobytes())))
    parameter.initialize(default_init=INITIALIZERS[options.initialization], ctx=parameter.list_ctx(), force_reinit=True)


def _read(file):
    try:
        verify_file(file)
        return read_arrays(file)
    except UserError as error:
        raise UserError(f'--resume-params: {error}') from error


def _fetch(options, get_model, model):
    """Return the arrays of published weights, which may be of another number of classes."""
    try:
        published = get_model(**{**model, 'classes': None}, pretrained=options.use_pretrained, ctx=mx.cpu())
    except (AssertionError, OSError, RuntimeError) as error:
        raise UserError(f'--use-pretrained: no weights of {options.model}: {last_line(error)}') from error
    return {name: parameter.data() for name, parameter in published._collect_params_with_prefix().items()}


def _describe_pretrained(options):
    return f'the pretrained {options.model}' + ('' if options.use_pretrained is True else f' of {options.use_pretrained}')
