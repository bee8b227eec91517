"""Exceptions of the library, and helpers for messages, such as one that shortens the messages of MXNet's errors."""

import difflib
import os
import re
from typing import Iterable, List, Sequence, Tuple

_CONTROL = re.compile('[\\0-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]')

_NAMED = 4  # how many names a message lists
_SUGGESTED = 3  # words in place of an unknown one


class UserError(ValueError):
    """An invalid argument, file or flag. The message is one line that names what is wrong and what to do.

    The command line prints only this message and exits with status 2. All other exceptions are defects and keep their traceback.
    """


class DataError(UserError):
    """Data that cannot be read within an epoch. The network has the state after the last update, so a checkpoint can be saved."""


class MemoryLimitError(UserError):
    """Data that cannot be read within the limit of memory."""


class FileError(OSError, UserError):
    """A file that cannot be read. Has the attributes of `OSError`: `errno`, `strerror` and `filename`."""

    def __str__(self):
        return f'{self.filename}: {self.strerror}'


def describe_os_error(error: OSError) -> str:
    """Return the file and the reason of an error of the operating system, without its number: ``photo.jpg: No such file or directory``."""
    return str(error) if error.filename is None else f'{error.filename}: {error.strerror}'


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: ``; did you mean A or B?`` with the most similar known words, or nothing."""
    found = similar(word, known)
    return f'; did you mean {" or ".join(found)}?' if found else ''


def similar(word: str, known: Iterable[str]) -> List[str]:
    """Return up to three of the known words that are similar to an unknown one: the most similar first, then words that begin like it."""
    known = list(known)

    def likeness(other: str) -> Tuple[float, int]:
        return difflib.SequenceMatcher(None, other, word).ratio(), len(os.path.commonprefix([other, word]))

    return sorted(difflib.get_close_matches(word, known, max(1, len(known))), key=likeness, reverse=True)[:_SUGGESTED]


def name_some(names: Sequence[object]) -> str:
    """Return the first names of a list as text, with the number of those left out: ``a, b, c, d and 2 more``."""
    return ', '.join(map(str, names[:_NAMED])) + (f' and {len(names) - _NAMED:,} more' if len(names) > _NAMED else '')


def counted(number: int, noun: str, form: str = '') -> str:
    """Return a number, formatted by `form`, and a noun in singular or plural: ``1 epoch``, ``2 classes``, with ``','`` ``2,000 images``."""
    plural = noun + ('es' if noun.endswith(('s', 'x')) else 's')
    return f'{number:{form}} {noun if number == 1 else plural}'


def last_line(error):
    """Return the last line of an error message. MXNet prepends a C++ stack trace to its messages."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def is_printable(name):
    """Return whether a name can be printed in a line of UTF-8: it has no control characters, which a terminal could execute."""
    return _CONTROL.search(name) is None


def printable(text: str) -> str:
    """Return a text, which may contain names of files, with control characters and what UTF-8 cannot encode replaced by escapes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
