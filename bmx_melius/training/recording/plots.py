"""Plots in the folder of a run, as matplotlib figures.

They are created without pyplot, which would keep references to them and may require a display. matplotlib is imported when the first
figure is created, to keep the start of the program fast.
"""

import dataclasses
import math
from typing import Callable, Optional

import numpy as np

from .flips import ALL, STATISTICS

VALIDATION, TRAINING, DONE, PLANNED, MAXIMUM = 'tab:blue', 'tab:orange', 'tab:blue', '0.75', '0.6'
BANDS = (('p5', 'p95', 0.2), ('p25', 'p75', 0.4))
POINTS = 1000  # maximum number of points of the learning-rate curve


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Learning rates of a run.

    Attributes
    ----------
    rate : callable int -> float, or None
        Learning rate of an update; updates are counted from 1. None if it is not known in advance.
    updates_per_epoch, num_epochs : int
    """

    rate: Optional[Callable[[int], float]]
    updates_per_epoch: int
    num_epochs: int


def accuracy(history, title):
    """Plot top-1 and top-5 accuracy in percent over the epochs of `Progress.history`; what is NaN in all of them is left out."""
    figure, axes = _figure()
    axes.set_title(title)
    epochs = [row['epoch'] for row in history]
    validated = [row for row in history if not math.isnan(row['top1'])]
    for column, colour, style, name in (
        ('top5', VALIDATION, '--', 'validation top-5'),
        ('train_top5', TRAINING, '--', 'training top-5'),
        ('top1', VALIDATION, '-', 'validation top-1'),
        ('train_top1', TRAINING, '-', 'training top-1'),
    ):
        values = [100 * row[column] for row in history]
        if all(map(math.isnan, values)):  # there are no validation images
            continue
        axes.plot(epochs, values, style, color=colour, marker='.' if len(epochs) < 20 else '', label=f'{name}: {values[-1]:.1f} %')
    if validated:
        best = max(validated, key=lambda row: row['top1'])
        axes.plot(
            best['epoch'],
            100 * best['top1'],
            'o',
            color=VALIDATION,
            markerfacecolor='none',
            label=f'best: {100 * best["top1"]:.1f} %, epoch {best["epoch"]}',
        )
    axes.set(xlabel='epoch', ylabel='accuracy (%)')
    axes.legend(loc='upper left', bbox_to_anchor=(1, 1), frameon=False)
    return figure


def loss(history, title):
    """Plot the loss in training, and the cross-entropy on the validation images, over the epochs of `Progress.history`.

    Rows of earlier versions have no loss on validation images; without validation images it is NaN, and left out.
    """
    figure, axes = _figure()
    axes.set_title(title)
    for column, colour, name in (('validation_loss', VALIDATION, 'validation'), ('loss', TRAINING, 'training')):
        points = [(row['epoch'], row[column]) for row in history if not math.isnan(row.get(column, math.nan))]
        if points:
            marker = '.' if len(points) < 20 else ''
            axes.plot(*zip(*points), color=colour, marker=marker, label=f'{name}: {points[-1][1]:.3g}')
    axes.set(xlabel='epoch', ylabel='loss')
    axes.legend(loc='upper left', bbox_to_anchor=(1, 1), frameon=False)
    return figure


def confusion(counts, names, best, title):
    """Draw the confusion matrix on the validation images as ``bmx-melius evaluate`` does; `best` is the row of its epoch."""
    from ...analysis.confusion_plot import draw

    return draw(counts, names, f'{title}\nvalidation images, epoch {best["epoch"]}: top-1 {best["top1"]:.2%}')


def learning_rate(schedule, done, history, title):
    """Plot the learning rates of a run, planned and used so far.

    If no rates are planned, the rates in the `history` are plotted, of the last update of each epoch.

    Parameters
    ----------
    schedule : Schedule
    done : int
        Number of finished updates.
    history : list of dict
        As in `Progress.history`.
    title : str
    """
    figure, axes = _figure()
    axes.set_title(title)
    axes.set(xlabel='epoch', ylabel='learning rate')
    if schedule.rate is None:
        points = [(row['epoch'], row['learning_rate']) for row in history if 'learning_rate' in row]
        axes.plot(*zip(*points or [(0, math.nan)]), '.-', color=DONE, label='used, at the end of the epoch')
    else:
        _plot_schedule(axes, schedule, done)
    axes.set(xlim=(0, schedule.num_epochs), ylim=(0, None))
    axes.legend(loc='upper left', bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _plot_schedule(axes, schedule, done):
    """Plot the planned learning rates, and the rates of the `done` updates."""
    total = schedule.updates_per_epoch * schedule.num_epochs
    updates = np.unique(np.append(np.linspace(1, total, min(total, POINTS)).astype(int), max(1, done)))
    rates = np.array([schedule.rate(int(update)) for update in updates])
    epochs, over = updates / schedule.updates_per_epoch, updates <= done
    axes.plot(epochs, rates, color=PLANNED, label='planned')
    axes.plot(epochs[over], rates[over], color=DONE, linewidth=2, label='used')
    if done:
        axes.plot(
            epochs[over][-1:],
            rates[over][-1:],
            'o',
            color=DONE,
            clip_on=False,
            label=f'{rates[over][-1]:.3g} in update {done:,} of {total:,}',
        )


def flips(rows, title):
    """Plot the flips of binary weights per epoch: the distribution over all weights, and mean and share for each layer.

    `rows` is the result of `FlipCounter.rows`.
    """
    from matplotlib import colormaps

    figure, axes = _figure(size=(11, 5.2), mosaic=[['all', 'mean'], ['all', 'flipped']])
    figure.suptitle(title)
    layers = {}
    for row in rows:
        layers.setdefault(row['layer'], []).append(row)
    together = layers.pop(ALL)
    epochs = [row['epoch'] for row in together]
    values = {name: [row[name] for row in together] for name in STATISTICS}
    style = {'marker': '.'} if len(epochs) < 20 else {}
    for low, high, opacity in BANDS:
        axes['all'].fill_between(
            epochs,
            values[low],
            values[high],
            color=VALIDATION,
            alpha=opacity,
            linewidth=0,
            label=f'{low[1:]} to {high[1:]} % of the weights',
        )
    axes['all'].plot(epochs, values['p100'], color=MAXIMUM, label='maximum')
    axes['all'].plot(epochs, values['p99'], ':', color=VALIDATION, label='99 %')
    axes['all'].plot(epochs, values['p50'], color=VALIDATION, **style, label='median')
    axes['all'].plot(epochs, values['mean'], color=TRAINING, **style, label='mean')
    axes['all'].set(xlabel='epoch', ylabel='flips of a weight in the epoch', title='all binary weights')
    _scale_from_zero(axes['all'], values)
    axes['all'].legend(loc='upper center', bbox_to_anchor=(0.5, -0.13), ncol=3, fontsize='small', frameon=False)
    for name, label, factor in (('mean', 'mean flips of a weight', 1), ('flipped', 'weights that flipped (%)', 100)):
        for number, layer in enumerate(layers.values()):
            colour = colormaps['viridis'](0.95 * number / max(1, len(layers) - 1))
            axes[name].plot(epochs, [factor * row[name] for row in layer], color=colour, linewidth=1, **style)
        axes[name].set(ylabel=label, ylim=(0, None))
    axes['mean'].set_title('layers, from the first (dark) to the last (bright)')
    axes['flipped'].set_xlabel('epoch')
    return figure


def _scale_from_zero(axes, values):
    """Set a logarithmic scale that includes 0: most weights never flip, the mean is far below 1, and a few weights flip very often."""
    from matplotlib.ticker import FuncFormatter

    smallest = min((mean for mean in values['mean'] if mean), default=1)
    axes.set_yscale('symlog', linthresh=min(1, 10 ** math.floor(math.log10(smallest))), linscale=0.5)
    axes.set_ylim(0, 1.5 * max(1, *values['p100']))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f'{number:g}'))


def _figure(size=(8, 4.2), mosaic=None):
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=size, dpi=110, layout='constrained')
    axes = figure.subplot_mosaic(mosaic) if mosaic else figure.subplots()
    for part in axes.values() if mosaic else [axes]:
        part.grid(alpha=0.3)
        part.spines[['top', 'right']].set_visible(False)
        part.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes
