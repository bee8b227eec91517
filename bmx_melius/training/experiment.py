"""The folder of a run, apart from its checkpoints: what happened, to be read and looked at."""
import csv
import os

from ..files import replacing

LOG_FILE = 'experiment.log'


class Experiment:
    """Keeps the files of a run's folder up to date; all are written anew from the history, so a resumed run continues them.

    ``metrics.csv``: a row for each finished epoch, with the columns of `Progress.history`.

    Parameters
    ----------
    folder : str
        Exists.
    writes : bool
        False on all processes but one of several that train together: no file is written.
    """

    def __init__(self, folder, writes=True):
        self._folder, self._writes = folder, writes

    def end_epoch(self, history):
        """An epoch is over, and its row is the last one of `history`."""
        if not self._writes:
            return
        with replacing(os.path.join(self._folder, 'metrics.csv')) as temporary, open(temporary, 'w', newline='', encoding='utf-8') as file:
            table = csv.DictWriter(file, list(history[-1]))
            table.writeheader()
            table.writerows(history)
