"""The networks that predict and evaluate run on images: loaded from exported files, packed or not, or a Gluon block."""

import warnings

import mxnet as mx

from ..analysis.graph import Graph, load_checked
from ..errors import UserError, last_line
from ..files.parameters import difference, read_arrays
from ..files.symbol_json import SymbolJson
from .image_classifier import ImageClassifier

_GIVE_PROBABILITIES = ('softmax', 'SoftmaxOutput', 'SoftmaxActivation')


class Classifier(ImageClassifier):
    """A network of MXNet that maps images to class scores.

    Parameters
    ----------
    name : str
        Name of the network in errors.
    network : gluon.Block
    graph : Graph
        Graph of the network for a batch of one image.

    Raises
    ------
    UserError
        Unless the network has one output with one value per class.
    """

    def __init__(self, name, network, graph):
        super().__init__(name, [node.shape for node in graph.outputs], graph.outputs[0].operator in _GIVE_PROBABILITIES)
        self._network = network

    @classmethod
    def load(cls, exported, epoch, spec):
        """Load the network of an `Exported`, for inputs of an `InputSpec`. Raises `UserError` if the files or shapes do not match."""
        SymbolJson.parse(exported.symbol_text, exported.symbol_file)
        symbol = load_checked(exported.symbol_text, exported.symbol_file)
        file = exported.parameter_file(epoch)
        stored = {name: array.shape for name, array in read_arrays(file).items()}
        needed = set(symbol.list_inputs()) - set(stored)
        if len(needed) != 1:
            raise UserError(
                f'{file} must hold all inputs of {exported.symbol_file} but one, the image; '
                f'{"it lacks " + ", ".join(sorted(needed)[:4]) if needed else "none is left"}'
            )
        image = needed.pop()
        graph = Graph.read(symbol, {image: (1, *spec.shape)})
        wrong = difference(stored, {node.name: node.shape for node in graph.parameters + graph.statistics})
        if wrong:
            raise UserError(f'{file} does not fit {exported.symbol_file} and an input of shape {spec.shape}: {wrong}')
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input, which is float32
            network = mx.gluon.SymbolBlock.imports(exported.symbol_file, [image], file)
        return cls(exported.prefix, network, graph)

    def read(self, image, spec):
        return spec.load(image)

    def _run(self, images):
        try:
            return self._network(images).asnumpy()
        except mx.MXNetError as error:
            raise UserError(f'{self.name} does not run on an input of shape {images.shape}: {last_line(error)}') from error
