"""A network that classifies batches of images: an exported one, packed or not, checked before MXNet loads it, or one in memory."""

import math
import warnings

import mxnet as mx
import numpy as np

from ..analysis.graph import Graph, load_symbol
from ..container import difference, read_arrays
from ..errors import UserError, last_line

_GIVE_PROBABILITIES = ('softmax', 'SoftmaxOutput', 'SoftmaxActivation')


class Classifier:
    """A network that maps images to the scores of its classes.

    Parameters
    ----------
    name : str
        What errors call it.
    network : gluon.Block
    graph : Graph
        Of the network and one image.

    Attributes
    ----------
    classes : int
    gives_probabilities : bool
        Whether the scores are probabilities; else they are logits.

    Raises
    ------
    UserError
        When the network has not one output with one value a class.
    """

    def __init__(self, name, network, graph):
        shapes = [node.shape for node in graph.outputs]
        if len(shapes) != 1 or len(shapes[0]) < 2 or max(shapes[0]) != math.prod(shapes[0]):
            raise UserError(f'{name} is no classifier: its outputs have the shapes {", ".join(map(str, shapes))}, not (1, classes)')
        self.name, self._network = name, network
        self.classes = math.prod(shapes[0])
        self.gives_probabilities = graph.outputs[0].operator in _GIVE_PROBABILITIES

    @classmethod
    def load(cls, exported, epoch, spec):
        """The network of the files of `exported`, for inputs of an `InputSpec`. Raises `UserError` where the files do not fit."""
        symbol = load_symbol(exported.symbol_file)
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
            warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input: it is what it is given, float32
            network = mx.gluon.SymbolBlock.imports(exported.symbol_file, [image], file)
        return cls(exported.prefix, network, graph)

    def __call__(self, images, names):
        """Run the network.

        Parameters
        ----------
        images : NDArray
            (N, channels, size, size) float32.
        names : sequence of str
            What errors call each image.

        Returns
        -------
        numpy.ndarray, (N, classes) float32

        Raises
        ------
        UserError
            When the network does not run, or gives values that are not finite.
        """
        try:
            scores = self._network(images).asnumpy().reshape(len(images), -1)
        except mx.MXNetError as error:
            raise UserError(f'{self.name} does not run on an input of shape {images.shape}: {last_line(error)}') from error
        finite = np.isfinite(scores).all(axis=1)
        if not finite.all():
            raise UserError(
                f'{self.name} gives values that are not finite for {names[finite.argmin()]}: '
                'its parameters are damaged or training diverged'
            )
        return scores

    def probabilities(self, scores):
        """(N, classes) scores to probabilities, float64: the softmax of logits."""
        scores = scores.astype(np.float64)
        if self.gives_probabilities:
            return scores
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)
