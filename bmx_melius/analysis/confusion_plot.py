"""Plots of confusion matrices."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import printable
from ..files.io import replacing

SUFFIXES = tuple(sorted(f'.{kind}' for kind in FigureCanvasAgg.get_supported_filetypes()))
_NUMBERED = 20  # classes, up to which the cells have numbers
_NAMED = 50  # ... and the axes names
_DARK = 0.4  # share from which white letters are read better


def draw(counts, names, title):
    """Draw a confusion matrix; colours show the share of the images of the true class.

    For up to 20 classes the cells also show the numbers of images. With 1000 classes each cell still covers at least one pixel.

    Parameters
    ----------
    counts : numpy.ndarray
        (classes, classes): number of images of the row's class that were classified as the column's class.
    names : sequence of str
        Names of the classes.
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    classes = len(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(5.0, 0.45 * classes), 12.0)
    figure = Figure(figsize=(side + 1.5, side), dpi=150, layout='constrained')
    axes = figure.add_subplot()
    picture = axes.imshow(shares, cmap='Blues', norm=PowerNorm(0.5, 0, 1), interpolation='nearest')  # makes small shares visible
    figure.colorbar(picture, ax=axes, shrink=0.8, label='share of the images of a class')
    axes.set(title=printable(title), xlabel='predicted class', ylabel='true class')
    if classes <= _NAMED:
        axes.set_xticks(range(classes), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(classes), names)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    if classes <= _NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = 'white' if shares[row, column] > _DARK else 'black'
                axes.text(column, row, str(count), ha='center', va='center', fontsize=8, color=colour)
    return figure


def save(figure, path):
    """Write a figure to `path` atomically. The suffix determines the format (see `check_path`)."""
    with replacing(path) as temporary:
        figure.savefig(temporary)
