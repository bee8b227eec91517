"""What the arguments of all commands have in common."""

import argparse

from ..errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser that keeps the layout of its help and reports a wrong argument as a `UserError`."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message):
        raise UserError(f'{message}; see {self.prog} --help')


def add_json_flag(parser):
    """``--json``, for programs that read the result."""
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')


def add_network(parser, files, described):
    """A network of the zoo by its name, or one in `files`: the placeholder for them, and what they are."""
    help = f'a network of the zoo (bmx-melius info lists them), or {described}'
    parser.add_argument('network', metavar=f'MODEL|{files}', help=help)


def add_input_size(parser, default, default_shape=None):
    """``--input-size`` and ``--input-shape``, of which one can be given; `default`: what the size is otherwise, in words."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--input-size', type=positive_int, metavar='N', help=f'height and width of the input (default: {default})')
    suffix = f' (default: {default_shape})' if default_shape else ''
    size.add_argument('--input-shape', type=shape, metavar='N,C,H,W', help=f'whole shape of the input, batch first{suffix}')


def positive_int(text):
    """'5' -> 5."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f'expected a positive whole number, not {text!r}')
    return int(text)


def shape(text):
    """'1,3,224,224' -> (1, 3, 224, 224)."""
    return tuple(positive_int(size.strip()) for size in text.split(','))


def numbers(text):
    """'0.5,1' -> (0.5, 1.0)."""
    try:
        return tuple(float(number) for number in text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected numbers with commas between, not {text!r}') from None


def add_input_shapes(parser, help):
    """``--input-shape``, once or for each input by its name: a list of `named_shape`, for `shape_of_input`."""
    parser.add_argument('--input-shape', type=named_shape, action='append', metavar='[NAME=]N,C,H,W', help=help)


def named_shape(text):
    """'data=1,3,8,8' -> ('data', (1, 3, 8, 8)); without a name: (None, (1, 3, 8, 8))."""
    name, equals, sizes = text.rpartition('=')
    if equals and not name:
        raise argparse.ArgumentTypeError(f'expected NAME=N,C,H,W or N,C,H,W, not {text!r}')
    return name or None, shape(sizes)


def shape_of_input(given, exported):
    """The shape of an exported network's input, batch first, or a dict of one for each input's name.

    Parameters
    ----------
    given : list of `named_shape` or None
        Of the command line; None: what the description says.
    exported : Exported

    Raises
    ------
    UserError
        When nothing is known, or of several inputs not each is named.
    """
    if not given:
        spec = exported.description().input_spec()
        if spec is None:
            raise UserError(f'there is no {exported.description_file}: give the shape of the input with --input-shape N,C,H,W')
        return 1, *spec.shape
    names = [name for name, _ in given]
    if names == [None]:
        return given[0][1]
    if None in names or len(set(names)) != len(names):
        raise UserError('with several inputs, give each --input-shape once with its name: --input-shape NAME=N,C,H,W')
    return dict(given)
