"""Scores of classifiers: checks of their shape and values, probabilities, and the most probable classes."""

import math

import numpy as np

from ..errors import UserError, is_printable


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
    """Raise `UserError` unless all scores, (N, classes), are finite; `name` is that of the network, `images` those of the N images."""
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        raise UserError(
            f'{name} gives values that are not finite for {images[finite.argmin()]}: its parameters are damaged or training diverged'
        )


def softmax(logits):
    """Convert logits (N, classes) to probabilities, float64."""
    logits = logits.astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def most_probable(probabilities, top):
    """Return the numbers of the `top` most probable classes of an image, (classes,) float; of equal ones the first."""
    return (-probabilities).argsort(kind='stable')[:top].tolist()


def describe_classes(scores, names, top):
    """Describe the `top` most probable classes of an image, the most probable one first.

    Parameters
    ----------
    scores : numpy.ndarray, (classes,)
        Logits.
    names : list of str or None
    top : int

    Returns
    -------
    list of tuple (int, str or None, float)
        Number of the class, its name and its probability.
    """
    (probabilities,) = softmax(scores[None])
    best = most_probable(probabilities, top)
    return [(number, names[number] if names else None, float(probabilities[number])) for number in best]


def require_names(names, classes, source):
    """Raise `UserError` if there are names of the classes, but not a printable one for each; `source` contains the names."""
    if names is None:
        return
    if len(names) != classes:
        raise UserError(f'{source} names {len(names)} classes, but the network has {classes}')
    require_printable(names, source)


def require_printable(names, source):
    """Raise `UserError` if one of the names of classes has control characters, which a terminal could execute."""
    for name in names:
        if not is_printable(name):
            raise UserError(f'{source}: the name {ascii(name)} of a class has control characters: rename the class')
