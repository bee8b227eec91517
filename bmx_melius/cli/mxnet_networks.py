"""Classifiers that MXNet runs, of predict and evaluate: exported networks, packed or not, and Gluon blocks."""

import warnings

import mxnet as mx

from ..errors import UserError, last_line
from ..files.parameters import difference, read_arrays
from ..files.symbol_json import SymbolJson
from ..graph.tracing import load_checked, read_graph
from ..vision.classifier import Classifier

_GIVE_PROBABILITIES = ('softmax', 'SoftmaxOutput', 'SoftmaxActivation')


def block_classifier(name, network, graph, spec, class_names=None, source=''):
    """Return the `Classifier` of a Gluon block.

    Parameters
    ----------
    name : str
        Name of the network in errors.
    network : gluon.Block
    graph : Graph
        Graph of the network for a batch of one image.
    spec, class_names, source
        Parameters of the `Classifier`, whose errors are raised. Its inputs may be NDArrays.
    """

    def run(inputs):
        try:
            return network(inputs if isinstance(inputs, mx.nd.NDArray) else mx.nd.array(inputs)).asnumpy()
        except mx.MXNetError as error:
            raise UserError(f'{name} does not run on an input of shape {inputs.shape}: {last_line(error)}') from error

    shapes = [node.shape for node in graph.outputs]
    return Classifier(name, run, shapes, spec, class_names, source, graph.outputs[0].operator in _GIVE_PROBABILITIES)


def exported_classifier(exported, epoch, spec, class_names=None, source=''):
    """Return the `Classifier` of an `Exported`, of which both files are read once. Raises `UserError` if files or shapes do not match."""
    SymbolJson.parse(exported.symbol_text, exported.symbol_file)
    symbol = load_checked(exported.symbol_text, exported.symbol_file)
    file = exported.parameter_file(epoch)
    arrays = read_arrays(file)
    stored = {name: array.shape for name, array in arrays.items()}
    needed = set(symbol.list_inputs()) - set(stored)
    if len(needed) != 1:
        raise UserError(
            f'{file} must hold all inputs of {exported.symbol_file} but one, the image; '
            f'{"it lacks " + ", ".join(sorted(needed)[:4]) if needed else "none is left"}'
        )
    image = needed.pop()
    graph = read_graph(symbol, {image: (1, *spec.shape)})
    wrong = difference(stored, {node.name: node.shape for node in graph.parameters + graph.statistics})
    if wrong:
        raise UserError(f'{file} does not fit {exported.symbol_file} and an input of shape {spec.shape}: {wrong}')
    return block_classifier(exported.prefix, _block(symbol, image, arrays), graph, spec, class_names, source)


def _block(symbol, image, arrays):
    """Return what ``SymbolBlock.imports`` returns, which would read the files again, from a symbol and its arrays."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input, which is float32
        network = mx.gluon.SymbolBlock(symbol, mx.sym.var(image))
    parameters = network.collect_params()
    parameters.setattr('grad_req', 'null')
    parameters.initialize(mx.init.Zero())
    for name, parameter in parameters.items():
        array = arrays[name]
        parameter.cast(array.dtype)
        parameter.set_data(mx.nd.array(array, dtype=array.dtype))
    return network
