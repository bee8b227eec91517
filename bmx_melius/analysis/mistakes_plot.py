"""Pictures of misclassified images."""

import math

import numpy as np
from matplotlib.figure import Figure

from ..errors import printable

MAX_IMAGES = 64  # images in a picture
_COLUMNS = 8
_NAME = 18  # characters of a class name that fit above an image


def draw(images, mistakes, title):
    """Draw misclassified images in the order of a list, each with its class, the predicted class and the probability of the latter.

    Parameters
    ----------
    images : callable int -> numpy.ndarray
        Image with a number: (height, width, channels), uint8, or another integer type of 0 up to its largest value. Images with other
        numbers of channels than 1 and 3 are drawn as the mean of their channels.
    mistakes : list of (int, str, str, float)
        Number of the image, name of its class, name of the predicted class, and its probability; the first `MAX_IMAGES` are drawn.
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    shown = mistakes[:MAX_IMAGES]
    columns = min(_COLUMNS, max(4, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(1.6 * columns, 1.95 * rows + 0.5), dpi=110, layout='constrained')
    figure.suptitle(printable(title))
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, (number, label, prediction, probability) in zip(figure.axes, shown):
        pixels = _pixels(images(number))
        axes.imshow(pixels, cmap='gray', vmin=0, vmax=1, interpolation='nearest' if len(pixels) < 64 else 'antialiased')
        axes.set_title(f'{_short(label)}\n→ {_short(prediction)} {probability:.0%}', fontsize=7)
    return figure


def _pixels(image):
    """Return an image as numbers from 0 to 1, (height, width) or (height, width, 3)."""
    values = image.astype(np.float32) / (np.iinfo(image.dtype).max if np.issubdtype(image.dtype, np.integer) else 1)
    return values if values.shape[2] == 3 else values.mean(axis=2)


def _short(name):
    name = printable(name)
    return name if len(name) <= _NAME else name[: _NAME - 1] + '…'
