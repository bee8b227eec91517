"""Classification of images: from the input that an `InputSpec` prepares to the scores of a network, and from these to classes."""

import math

import numpy as np

from ..errors import UserError, counted, is_printable


class Classifier:
    """A network that maps images to scores of classes. Pixels become its inputs by `spec`.

    Parameters
    ----------
    name : str
        Name of the network in errors.
    network : callable
        Maps inputs, (N, channels, size, size) float32, to scores, an array whose first axis is the batch.
    shapes : list of tuple of int
        Shapes of the outputs of the network for one image.
    spec : InputSpec
    class_names : list of str or None
    source : str
        What contains the names, in errors.
    gives_probabilities : bool
        Whether the scores are probabilities; else they are logits.

    Attributes
    ----------
    spec, class_names, gives_probabilities
        The parameters.
    classes : int

    Raises
    ------
    UserError
        Unless the network has one output with one value per class, and the names are printable and one for each class.
    """

    def __init__(self, name, network, shapes, spec, class_names=None, source='', gives_probabilities=False):
        self.classes = number_of_classes(shapes, name)
        require_names(class_names, self.classes, source)
        self._name, self._network = name, network
        self.spec, self.class_names, self.gives_probabilities = spec, class_names, gives_probabilities

    def __call__(self, inputs, images):
        """Run the network on inputs and return their scores, see `checked`; `images` names the N images in errors."""
        return self.checked(self._network(inputs), images)

    def checked(self, scores, images):
        """Return the scores of N images as (N, classes). Raises `UserError` unless they are finite; `images` names the images in errors."""
        scores = scores.reshape(len(images), self.classes)
        require_finite(scores, self._name, images)
        return scores

    def probabilities(self, scores):
        """Convert (N, classes) scores to probabilities, float64; logits by softmax."""
        scores = scores.astype(np.float64)
        if self.gives_probabilities:
            return scores
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    def most_probable(self, scores, top):
        """Yield the `top` most probable classes of each image, the most probable class first; equally probable classes by number.

        Parameters
        ----------
        scores : numpy.ndarray, (N, classes)
        top : int

        Yields
        ------
        list of dict
            ``class``, its number; ``name``, or None; and ``probability``.
        """
        for row in self.probabilities(scores):
            best = (-row).argsort(kind='stable')[:top].tolist()
            yield [
                {'class': number, 'name': self.class_names[number] if self.class_names else None, 'probability': float(row[number])}
                for number in best
            ]


def number_of_classes(shapes, name):
    """Return the number of classes of a network.

    Parameters
    ----------
    shapes : list of tuple of int
        Shapes of its outputs for a batch of one image.
    name : str
        Name of the network in errors.

    Raises
    ------
    UserError
        Unless the network has one output with one value per class.
    """
    if len(shapes) != 1 or len(shapes[0]) < 2 or max(shapes[0]) != math.prod(shapes[0]):
        raise UserError(f'{name} is not a classifier: its outputs have the shapes {", ".join(map(str, shapes))}, not (1, classes)')
    return math.prod(shapes[0])


def require_finite(scores, name, images):
    """Raise `UserError` unless all scores, (N, classes), are finite; `name` and `images` name the network and the N images."""
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        raise UserError(
            f'{name} gives values that are not finite for {images[finite.argmin()]}: its parameters are damaged or training diverged'
        )


def require_names(names, classes, source):
    """Raise `UserError` if there are names of the classes, but not a printable one for each; `source` contains the names."""
    if names is None:
        return
    if len(names) != classes:
        raise UserError(f'{source} names {counted(len(names), "class")}, but the network has {classes}')
    require_printable(names, source)


def require_printable(names, source):
    """Raise `UserError` if one of the names of classes has control characters, which a terminal could execute."""
    for name in names:
        if not is_printable(name):
            raise UserError(f'{source}: the name {ascii(name)} of a class has control characters: rename the class')
