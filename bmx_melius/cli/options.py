"""Options that several commands share, and functions that evaluate them."""

import contextlib
import importlib.util
import json
import os
import signal

from ..arguments import flag_of, named_shape, number, positive_int, shape
from ..errors import UserError
from ..files.exported import Exported, similar_prefixes
from ..files.stored_networks import find_stored
from ..files.symbol_json import SymbolJson
from ..signatures import picked

PREFIX_HELP = 'prefix of the files PREFIX-symbol.json and PREFIX-0000.params, or the name of a network that ships with its weights'
_MAX_IMAGE_CHANNELS = 4


def add_json_flag(parser):
    """Add ``--json``, which prints the result in a form that programs can read."""
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')


def print_json(content, output):
    """Print the result of ``--json`` to the stream `output`."""
    print(json.dumps(content, indent=1), file=output)


def exit_at_sigterm():
    """From now on exit at SIGTERM as after Ctrl-C, so that partially written files are removed and workers are ended."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number, _):
    raise SystemExit(128 + number)


def add_network(parser, files, described):
    """Add the argument `network`: the name of a network of the zoo, or files. `files` is their metavar, `described` their help."""
    help = f'a network of the zoo (bmx-melius models lists them), or {described}'
    parser.add_argument('network', metavar=f'MODEL|{files}', help=help)


def exported_network(argument):
    """Return the `Exported` of an argument PREFIX: files, or the packed files of a network whose weights ship with the zoo.

    Neither MXNet nor the zoo is imported.

    Raises
    ------
    UserError
        If the packed files are damaged.
    """
    exported, folder = Exported(argument), weights_folder()
    stored = None if exported.names_files or folder is None else find_stored(folder, argument)
    return Exported(stored.packed()) if stored else exported


def weights_folder():
    """Return the folder of the weights that ship with the zoo; None if it is not installed."""
    zoo = importlib.util.find_spec('model_zoo')
    return os.path.join(zoo.submodule_search_locations[0], 'weights') if zoo and zoo.submodule_search_locations else None


def require_files_or_network(exported):
    """Raise `UserError` unless an `Exported`, made of an argument `network`, has files or has the name of a network."""
    if exported.names_files:
        exported.require()
        return
    from model_zoo import listed_name, unknown_network  # here, because they import MXNet

    from ..gluon_cv import gluoncv

    name = exported.prefix
    if listed_name(name) is None and name.lower() not in gluoncv.model_zoo.get_model_list():
        similar = similar_prefixes(name)
        raise UserError(unknown_network(name) + (f'; of files there is {" and ".join(similar)}' if similar else ''))


def add_input_size(parser, default, default_shape=None):
    """Add ``--input-size`` and ``--input-shape``, which exclude each other. `default` and `default_shape` describe defaults in the help."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--input-size', type=positive_int, metavar='N', help=f'height and width of the input (default: {default})')
    suffix = f' (default: {default_shape})' if default_shape else ''
    size.add_argument('--input-shape', type=shape, metavar='N,C,H,W', help=f'full shape of the input, batch first{suffix}')


def add_input_shapes(parser, help):
    """Add ``--input-shape``, which can be repeated with input names: a list of `named_shape`, for `shape_of_input`."""
    parser.add_argument('--input-shape', type=named_shape, action='append', metavar='[NAME=]N,C,H,W', help=help)


def add_translation_flags(parser):
    """Add ``--zero-is-positive`` and ``--outputs``, a list of str or None, of commands that translate ONNX models."""
    parser.add_argument(
        '--zero-is-positive',
        action='store_true',
        help='let signs that are 0 where their argument is 0 (torch.sign) be 1 there; without it, they are refused',
    )
    parser.add_argument(
        '--outputs',
        type=lambda names: names.split(','),
        metavar='NAME[,NAME...]',
        help='values or operators of the model at which the network ends (default: its outputs); the report lists what is left out',
    )


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
                '(N,C,W or N,C,D,H,W for 1-D or 3-D maps)'
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


@contextlib.contextmanager
def hint_at_layout(given):
    """Add a hint to a `UserError` within the block if a shape of ``--input-shape`` looks like one with the channels last.

    `given` is one shape, a list of `named_shape`, or None.
    """
    try:
        yield
    except UserError as error:
        for sizes in [given] if isinstance(given, tuple) else [sizes for _, sizes in given or ()]:
            if len(sizes) == 4 and sizes[3] <= _MAX_IMAGE_CHANNELS < min(sizes[1:3]):
                second = ','.join(map(str, (sizes[0], sizes[3], *sizes[1:3])))
                last = ','.join(map(str, sizes))
                raise UserError(
                    f'{error} (the shape {last} looks like N,H,W,C; this network may take N,C,H,W: --input-shape {second})'
                ) from error
        raise


def packed_prefix(source, input_shape, folder):
    """Return the prefix of the packed network: `source` if it is packed, else the prefix of files converted into `folder`."""
    from ..deployment.program.packed_operator import is_packed

    if any(is_packed(node['op'], node['attrs']) for node in SymbolJson.parse(source.symbol_text, source.symbol_file).nodes):
        return source.prefix

    from ..deployment.convert.conversion import convert

    prefix = os.path.join(folder, 'packed')
    with hint_at_layout(input_shape):
        report = convert(source.symbol_file, source.parameter_file(0), prefix, shape_of_input(input_shape, source), verify=False)
    if report.left:
        left = ', '.join(f'{one.node} ({one.operator}): {one.reason}' for one in report.left[:3])
        raise UserError(f'{source.prefix} cannot be written as one program: {left}')
    return prefix


def add_precisions(parser):
    """Add ``--half``, and ``--int8`` with its options: how float layers are stored and computed."""
    real = parser.add_mutually_exclusive_group()
    real.add_argument('--half', action='store_true', help='store the weights of float layers in half precision')
    real.add_argument(
        '--int8',
        dest='calibration',
        metavar='IMAGES',
        help='quantize float layers to int8, with ranges from these images: a folder with CLASS/*.jpg or train/CLASS/*.jpg, a .rec file, '
        'digits, glyphs (their training images), or an .npy file of inputs (float32) or pixels (uint8), (N, C, H, W); 256 of them are used',
    )
    parser.add_argument(
        '--int8-ranges',
        dest='ranges',
        choices=('mse', 'percentile', 'minmax'),
        help='ranges of 8-bit numbers with --int8: of the smallest squared error (default), 99.99 %% of the numbers, or all',
    )
    parser.add_argument(
        '--keep-float',
        type=lambda names: [name.strip() for name in names.split(',')] if names else [],
        metavar='LAYER[,LAYER...]',
        help='layers that stay float32 with --int8, by the names in the report, which says how much each layer changes the outputs',
    )
    parser.add_argument(
        '--min-correlation',
        type=number,
        metavar='C',
        help='with --int8, write nothing if the correlation of the outputs on the images with the outputs of float layers is below this '
        'number (default .5; -1: any)',
    )


def precisions(arguments):
    """Return the keyword arguments of conversion that the options of `add_precisions` give.

    Raises
    ------
    UserError
        If an option of ``--int8`` is given without it.
    """
    from ..deployment.convert.calibration import LayerOptions

    options = {name: value for name, value in picked(LayerOptions, vars(arguments)).items() if value is not None}
    for name in options:
        if name != 'half' and 'calibration' not in options:
            flag = '--int8-ranges' if name == 'ranges' else flag_of(name)
            raise UserError(f'{flag} is for --int8 IMAGES: give both, or leave it out')
    return options
