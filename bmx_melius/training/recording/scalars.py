"""The numbers of a run for TensorBoard."""

import importlib.util
import os
import time

from ...errors import UserError

PACKAGE = 'tensorboardX'


def check_installed():
    """Raise `UserError` unless the package that writes TensorBoard's files is there."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise UserError(f"--tensorboard needs the package {PACKAGE}: pip install {PACKAGE}, or 'bmx-melius[tensorboard]'")


class Scalars:
    """Curves over the updates of a run, in TensorBoard's format; a resumed run continues them.

    tensorboardX's `SummaryWriter` writes in a thread and waits for it for ever once the disk was full; what it is made of does not.

    Parameters
    ----------
    folder : str
        Made when needed.
    done : int
        How many updates are over. What an earlier process wrote for later ones, before it was killed, TensorBoard does not show.
    """

    def __init__(self, folder, done):
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        os.makedirs(folder, exist_ok=True)
        self._event, self._scalar = Event, summary.scalar
        self._writer = event_file_writer.EventsWriter(os.path.join(folder, 'events'), f'.{os.getpid()}')
        self._writer.write_event(Event(wall_time=time.time(), step=done + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, values, update):
        """A point of each curve, by its name (``group/name``), after so many updates."""
        for name, value in values.items():
            self._writer.write_event(self._event(wall_time=time.time(), step=update, summary=self._scalar(name, value)))
        self._writer.flush()
