"""The network that predict and evaluate run on images: loaded from exported files, packed or not, or a Gluon block."""

import math
import warnings

import mxnet as mx
import numpy as np

from ..analysis.graph import Graph, load_symbol
from ..container import difference, read_arrays
from ..errors import UserError, last_line

_GIVE_PROBABILITIES = ('softmax', 'SoftmaxOutput', 'SoftmaxActivation')


class Classifier:
    """A network that maps images to class scores.

    Parameters
    ----------
    name : str
        Name of the network in errors.
    network : gluon.Block
    graph : Graph
        Graph of the network for a batch of one image.

    Attributes
    ----------
    classes : int
    gives_probabilities : bool
        Whether the scores are probabilities; else they are logits.

    Raises
    ------
    UserError
        Unless the network has one output with one value per class.
    """

    def __init__(self, name, network, graph):
        shapes = [node.shape for node in graph.outputs]
        if len(shapes) != 1 or len(shapes[0]) < 2 or max(shapes[0]) != math.prod(shapes[0]):
            raise UserError(f'{name} is not a classifier: its outputs have the shapes {", ".join(map(str, shapes))}, not (1, classes)')
        self.name, self._network = name, network
        self.classes = math.prod(shapes[0])
        self.gives_probabilities = graph.outputs[0].operator in _GIVE_PROBABILITIES

    @classmethod
    def load(cls, exported, epoch, spec):
        """Load the network of an `Exported`, for inputs of an `InputSpec`. Raises `UserError` if the files or shapes do not match."""
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
            warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input, which is float32
            network = mx.gluon.SymbolBlock.imports(exported.symbol_file, [image], file)
        return cls(exported.prefix, network, graph)

    def __call__(self, images, names):
        """Run the network.

        Parameters
        ----------
        images : NDArray
            (N, channels, size, size) float32.
        names : sequence of str
            Names of the images in errors.

        Returns
        -------
        numpy.ndarray, (N, classes) float32

        Raises
        ------
        UserError
            If MXNet cannot run the network, or scores are not finite.
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
        """Convert (N, classes) scores to probabilities, float64; logits by softmax."""
        scores = scores.astype(np.float64)
        if self.gives_probabilities:
            return scores
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)
