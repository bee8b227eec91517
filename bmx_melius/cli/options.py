"""Options that several commands take, and what they mean."""

from ..arguments import named_shape, positive_int, shape
from ..errors import UserError


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


def add_input_shapes(parser, help):
    """``--input-shape``, once or for each input by its name: a list of `named_shape`, for `shape_of_input`."""
    parser.add_argument('--input-shape', type=named_shape, action='append', metavar='[NAME=]N,C,H,W', help=help)


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
