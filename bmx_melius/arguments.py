"""Command-line arguments: the parser class of all programs of this project, and argument types that several of them use."""

import argparse
import collections.abc
import contextlib
import itertools
import json
import re
import textwrap

from .errors import UserError, did_you_mean
from .process import usable_cores

MAX_NUMBER = 1e9


class _Formatter(argparse.HelpFormatter):
    """Fill the prose of a help text to the width of the terminal, and keep its indented lines, which are examples.

    Where an example with its comment is too wide, the comments of all examples beside it are placed above them. The names of a flag are
    shown as Python 3.13 does, with the argument once: ``-j, --num-data-workers N``.
    """

    def _fill_text(self, text, width, indent):
        lines = []
        for is_example, block in itertools.groupby(text.splitlines(), lambda line: line.startswith(' ') or not line):
            if is_example:
                lines += _narrowed(list(block), width - len(indent))
            else:
                lines += textwrap.wrap(' '.join(block), width - len(indent), break_on_hyphens=False, break_long_words=False)
        return '\n'.join(indent + line if line else line for line in lines)

    def _format_action_invocation(self, action):
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f'{", ".join(action.option_strings)} {self._format_args(action, self._get_default_metavar_for_optional(action))}'


def _narrowed(examples, width):
    """Return lines of examples, with their comments above the commands if one of them is longer than `width`."""
    if max(map(len, examples)) <= width:
        return examples
    lines, start = [], 0  # `start`: of the last command, which may continue on further lines after a backslash
    for example in examples:
        if not (lines and lines[-1].endswith('\\')):
            start = len(lines)
        command, *comment = re.split(r' +# ', example, maxsplit=1)
        lines[start:start] = [f'  # {text}' for text in comment]
        lines.append(command)
    return lines


class Parser(argparse.ArgumentParser):
    """An argument parser that keeps the examples in its help text as they are, unless the terminal is too narrow for them.

    For an invalid argument it raises `UserError`, which suggests similar flags and values.
    """

    def __init__(self, **kwargs):
        super().__init__(formatter_class=_Formatter, **kwargs)

    def error(self, message):
        raise UserError(f'{message}; see {self.prog} --help')

    def parse_known_args(self, args=None, namespace=None):
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition('=')[0]
            shown = [name for action in self._actions if action.help != argparse.SUPPRESS for name in action.option_strings]
            self.error(f'unrecognized arguments: {" ".join(unknown)}{did_you_mean(flag, shown)}')
        return found, unknown

    def _check_value(self, action, value):
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            suggestion = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f'{error.message}{suggestion}') from None


def number(text):
    """Parse a number: '0.5' -> 0.5. Infinities, NaN and numbers of which products are not finite as float32 are refused."""
    with contextlib.suppress(ValueError):
        if abs(float(text)) <= MAX_NUMBER:
            return float(text)
    raise argparse.ArgumentTypeError(f'expected a number of at most {MAX_NUMBER:g}, not {text[:40]!r}')


def whole_number(text):
    """Parse an integer, which may be negative, of at most 31 bits: '-5' -> -5."""
    if re.fullmatch('[+-]?[0-9]{1,10}', text) and abs(int(text)) < 1 << 31:
        return int(text)
    raise argparse.ArgumentTypeError(f'expected a whole number below {1 << 31:,}, not {text[:40]!r}')


def positive_int(text):
    """Parse a positive integer: '5' -> 5."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if whole_number(text) > 0:
            return int(text)
    raise argparse.ArgumentTypeError(f'expected a positive whole number below {1 << 31:,}, not {text[:40]!r}')


def thread_count(text):
    """Parse a number of threads; '0' -> the number of cores that this process may use."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if whole_number(text) >= 0:
            return int(text) or usable_cores()
    raise argparse.ArgumentTypeError(f'expected a whole number, 0 for one for each core that may be used, not {text[:40]!r}')


def shape(text):
    """Parse a shape: '1,3,224,224' -> (1, 3, 224, 224)."""
    return tuple(positive_int(size.strip()) for size in text.split(','))


def numbers(text):
    """Parse numbers separated by commas: '0.5,1' -> (0.5, 1.0)."""
    try:
        return tuple(map(number, text.split(',')))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f'expected numbers separated by commas, not {text!r}') from None


def switch(text):
    """'on' -> True, 'off' -> False."""
    if text.lower() not in ('on', 'off'):
        raise argparse.ArgumentTypeError(f'expected on or off, not {text!r}')
    return text.lower() == 'on'


def epochs(text):
    """Parse numbers of epochs: '40,60' -> [40, 60]."""
    numbers = [number.strip() for number in text.split(',')]
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        raise argparse.ArgumentTypeError(f'expected whole numbers separated by commas, such as 40,60, not {text!r}')
    return [int(number) for number in numbers]


def json_object(text):
    """Parse a JSON object: '{"a": 1}' -> {'a': 1}."""
    try:
        value = json.loads(text, parse_constant=number, parse_float=number)
    except (ValueError, RecursionError, argparse.ArgumentTypeError) as error:
        raise argparse.ArgumentTypeError(f'expected a JSON object such as {{"width": 32}}, not {text!r}: {error}') from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'expected a JSON object such as {{"width": 32}}, not {text!r}')
    return value


def named_shape(text):
    """Parse a shape with an optional input name: 'data=1,3,8,8' -> ('data', (1, 3, 8, 8)), '1,3,8,8' -> (None, (1, 3, 8, 8))."""
    name, equals, sizes = text.rpartition('=')
    if equals and not name:
        raise argparse.ArgumentTypeError(f'expected NAME=N,C,H,W or N,C,H,W, not {text!r}')
    return name or None, shape(sizes)


def fraction(text):
    """Parse a number between 0 and 1, without both: '0.2' -> 0.2."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise argparse.ArgumentTypeError(f'expected a number above 0 and below 1, not {text[:40]!r}')


def add_val_fraction(parser, help='keep this part of each class of a folder with CLASS/*.jpg for validation (default: 0.2)'):
    """Add ``--val-fraction`` of training, evaluate and pack-images, which all divide a folder in the same way."""
    parser.add_argument('--val-fraction', type=fraction, metavar='F', help=help)


def flag_of(name):
    """Return the flag of an attribute of parsed arguments: 'num_epochs' -> '--num-epochs'."""
    return '--' + name.replace('_', '-')


def require(condition, message):
    """Raise `UserError` with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def require_names_in_lists(**arguments):
    """Raise `UserError`, which names the argument, unless each is None or a collection of texts; a text would be one of its letters."""
    for argument, names in arguments.items():
        if isinstance(names, str):
            raise UserError(f'{argument} is a list of names, not a text: give {[names]!r}')
        if names is not None and not (isinstance(names, collections.abc.Collection) and all(isinstance(name, str) for name in names)):
            raise UserError(f'{argument} must be a list of names, not {names!r}')


def require_not_negative(options, *names):
    """Raise `UserError`, which names the flag, if one of the attributes `names` of the options is negative or NaN."""
    for name in names:
        require(getattr(options, name) >= 0, f'{flag_of(name)} must not be negative')
