"""TensorBoard scalars and histograms of a run."""

import os
import time

import numpy as np

BINS = 64  # of a histogram


class Scalars:
    """Writer of curves over the updates of a run in TensorBoard's format; a resumed run continues them.

    This uses `EventsWriter` of tensorboardX, because its `SummaryWriter` writes in a thread and blocks forever after the disk was full.

    Parameters
    ----------
    folder : str
        Created if it does not exist.
    done : int
        Number of finished updates. TensorBoard hides points of later updates that a killed process may have written.
    """

    def __init__(self, folder, done):
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        os.makedirs(folder, exist_ok=True)
        self._event, self._scalar, self._histogram = Event, summary.scalar, summary.histogram
        self._writer = event_file_writer.EventsWriter(os.path.join(folder, 'events'), f'.{os.getpid()}')
        self._writer.write_event(Event(wall_time=time.time(), step=done + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, values, update):
        """Add a point to each curve at `update`; `values` is a dict of names (``group/name``) to numbers."""
        for name, value in values.items():
            self._writer.write_event(self._event(wall_time=time.time(), step=update, summary=self._scalar(name, value)))
        self._writer.flush()

    def add_histograms(self, arrays, update):
        """Add a histogram of each array at `update`, without values that are not finite; `arrays` is a dict of names to NumPy arrays."""
        for name, array in arrays.items():
            finite = array[np.isfinite(array)]
            if finite.size:
                summary = self._histogram(name, finite.astype(np.float64), BINS)
                self._writer.write_event(self._event(wall_time=time.time(), step=update, summary=summary))
        self._writer.flush()
