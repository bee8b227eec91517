"""Weights of the classes in the loss (``--class-weights``), for data in which some classes have few images."""

import json

import numpy as np

from ..errors import UserError, last_line
from ..files.io import read_text

BALANCED = 'balanced'


def class_weights(choice, source):
    """Return the weight of each class, a list of float.

    Parameters
    ----------
    choice : str
        ``balanced``: images / (classes * images of the class), as in scikit-learn, so that all classes have the same weight in total, and
        the mean weight of a training image is 1. Otherwise a JSON file with an object of class names to weights, in which classes without
        a weight have 1, or with a list of a weight for each class.
    source : Source

    Raises
    ------
    UserError
        When the file is malformed, names other classes, or has weights that are not positive and finite.
    """
    if choice == BALANCED:
        counts = np.bincount(source.training_labels(), minlength=source.classes)
        return (source.train_images / (source.classes * np.maximum(counts, 1))).tolist()
    try:
        content = json.loads(read_text(choice))
        weights = _by_name(content, source) if isinstance(content, dict) else content
        values = np.array(weights, np.float64)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f'--class-weights: {choice} is not a JSON file with the weights of the classes: {last_line(error)}') from error
    if values.shape != (source.classes,) or not (np.isfinite(values).all() and (values > 0).all()):
        raise UserError(
            f'--class-weights: {choice} must have a positive number for each of the {source.classes} classes, as a list or as an object of '
            'class names to numbers'
        )
    return values.tolist()


def _by_name(content, source):
    names = source.class_names or [str(number) for number in range(source.classes)]
    unknown = [name for name in content if name not in names]
    if unknown:
        raise UserError(f'--class-weights: the data have no class {unknown[0]!r}; they have {", ".join(map(repr, names[:3]))}, ...')
    return [content.get(name, 1.0) for name in names]
