"""The progress bar of a training run."""

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
