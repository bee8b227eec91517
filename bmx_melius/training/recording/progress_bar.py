"""Progress bar of a training run."""

import contextlib

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ...reporting import LOG


class Bar:
    """Progress bar over all images of a run, with the remaining time; drawn only if standard error is a terminal.

    The remaining time is estimated from the mean speed since the start, so it includes validation after the first epoch.

    Parameters
    ----------
    total, done : int
        Number of images of the whole run, and of its finished part.
    drawn : bool
        False disables the bar.
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
        """Advance by `images`; show the texts `description` before and `values` after the bar."""
        self._bar.set_description_str(description, refresh=False)
        self._bar.set_postfix_str(', '.join(values), refresh=False)
        self._bar.update(images)
