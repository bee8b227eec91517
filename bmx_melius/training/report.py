"""What the user sees of a training run: a progress bar, and a line in the log every few updates."""

import contextlib

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ..reporting import LOG


class Bar:
    """A bar over all images of a run, with the time left; drawn only where standard error is a terminal.

    The time left follows from the mean speed since the start, so it includes validation once there was one.

    Parameters
    ----------
    total, done : int
        Images of the whole run, and of the part of it that is over.
    drawn : bool
        False draws none anywhere.
    """

    FORMAT = '{desc} {percentage:.0f}%|{bar}| {elapsed} < {remaining}{postfix}'

    def __init__(self, total, done, drawn=True):
        self._bar = tqdm(
            total=total, initial=done, bar_format=self.FORMAT, dynamic_ncols=True, smoothing=0, disable=None if drawn else True
        )
        self._redirection = contextlib.nullcontext() if self._bar.disable else logging_redirect_tqdm([LOG])

    def __enter__(self):
        self._redirection.__enter__()
        return self

    def __exit__(self, *exception):
        self._redirection.__exit__(*exception)
        self._bar.close()

    def advance(self, images, description, *values):
        """`images` more are done; the texts `description` and `values` are shown before and behind the bar."""
        self._bar.set_description_str(description, refresh=False)
        self._bar.set_postfix_str(', '.join(values), refresh=False)
        self._bar.update(images)


def show(bar, experiment, options, progress, source, learning_rate):
    """Report the update that is just over."""
    images_per_second = progress.pace.updates_per_second * source.images_per_update
    speed = f'{images_per_second:,.{0 if images_per_second >= 100 else 1}f} images/s'
    waiting = f'{progress.pace.waiting_share:.0%} waiting for data'
    bar.advance(
        source.images_per_update,
        f'epoch {progress.epoch + 1}/{options.num_epochs}',
        f'loss {progress.mean_loss:.3f}',
        f'top-1 {progress.accuracy:.1%}',
        f'rate {learning_rate:.1e}',
        speed,
        waiting,
    )
    if options.log_interval and progress.batch % options.log_interval == 0:
        LOG.info(
            'epoch %d, update %d of %d: loss %.4f, training top-1 %.2f%%, %s, %s, learning rate %.3g',
            progress.epoch + 1,
            progress.batch,
            source.updates_per_epoch,
            progress.mean_loss,
            100 * progress.accuracy,
            speed,
            waiting,
            learning_rate,
        )
        experiment.add_scalars(
            {
                'update/loss': progress.mean_loss,
                'update/top1': progress.accuracy,
                'update/learning_rate': learning_rate,
                'update/images_per_second': images_per_second,
                'update/waiting': progress.pace.waiting_share,
            },
            progress,
        )
