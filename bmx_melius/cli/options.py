"""Options that several commands share, and functions that evaluate them."""

from ..arguments import named_shape, positive_int, shape
from ..errors import UserError


def add_json_flag(parser):
    """Add ``--json``, which prints the result in a form that programs can read."""
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')


def add_network(parser, files, described):
    """Add the argument `network`: the name of a network of the zoo, or files. `files` is their metavar, `described` their help."""
    help = f'a network of the zoo (bmx-melius info lists them), or {described}'
    parser.add_argument('network', metavar=f'MODEL|{files}', help=help)


def add_input_size(parser, default, default_shape=None):
    """Add ``--input-size`` and ``--input-shape``, which exclude each other. `default` and `default_shape` describe defaults in the help."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--input-size', type=positive_int, metavar='N', help=f'height and width of the input (default: {default})')
    suffix = f' (default: {default_shape})' if default_shape else ''
    size.add_argument('--input-shape', type=shape, metavar='N,C,H,W', help=f'full shape of the input, batch first{suffix}')


def add_input_shapes(parser, help):
    """Add ``--input-shape``, which can be repeated with input names: a list of `named_shape`, for `shape_of_input`."""
    parser.add_argument('--input-shape', type=named_shape, action='append', metavar='[NAME=]N,C,H,W', help=help)


def shape_of_input(given, exported):
    """Return the shape of the input of an exported network, batch first, or a dict of input names to shapes.

    Parameters
    ----------
    given : list of `named_shape` or None
        Values of ``--input-shape``; None: use the description of the network.
    exported : Exported

    Raises
    ------
    UserError
        If the shape is unknown, or one of several inputs has no name.
    """
    if not given:
        spec = exported.description().input_spec()
        if spec is None:
            raise UserError(
                f'there is no {exported.description_file}: give the shape of the input with --input-shape N,C,H,W '
                '(N,C,W or N,C,D,H,W for maps with one or three axes)'
            )
        return 1, *spec.shape
    names = [name for name, _ in given]
    if names == [None]:
        return given[0][1]
    if None in names or len(set(names)) != len(names):
        raise UserError(
            'with several inputs, give each --input-shape once with its name: --input-shape NAME=N,C,H,W (or another number of axes)'
        )
    return dict(given)
