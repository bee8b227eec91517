"""Program of a process that decodes an image file whose headers do not say how much memory that takes; `pixels.decode` starts it."""

from ..errors import UserError
from ..limited_process import answer_messages, message
from .pixels import decode


def respond(head, content):
    """Return the answer to a request, a list of bytes.

    Parameters
    ----------
    head : dict
        ``name`` and ``channels``, the arguments of `pixels.decode`.
    content : bytes
        The image file.

    Returns
    -------
    list of bytes
        A message: ``error``, the text of a `UserError`, or ``shape`` and the pixels.
    """
    try:
        pixels = decode(content, **head)
    except UserError as error:
        return message({'error': str(error)})
    return message({'shape': pixels.shape}, pixels.data.cast('B'))


def main(memory):
    """Answer the messages on standard input with at most `memory` bytes of data."""
    answer_messages(respond, memory)
