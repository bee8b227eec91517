"""Options of predict, evaluate and convert for preprocessing and class names; they override the description of the network."""

import dataclasses
import sys

from ..arguments import numbers, positive_int, whole_number
from ..files.io import read_text
from ..vision.preprocessing import InputSpec


def add_options(parser):
    """Add ``--channels``, ``--input-size``, ``--resize``, ``--mean``, ``--std`` and ``--classes-file``."""
    parser.add_argument('--classes-file', metavar='FILE', help='text file with one class name per line')
    parser.add_argument('--channels', type=positive_int, metavar='N', help='channels of the input: 1 (gray), 3 (RGB) or others (TIFF, NPY)')
    parser.add_argument('--input-size', type=positive_int, metavar='N', help='height and width of the input in pixels')
    parser.add_argument(
        '--resize',
        type=whole_number,
        metavar='N',
        help='length of the short side before the centre crop; 0 resizes to the input size without a crop '
        '(default with --input-size: 8/7 of it, as 256 for 224)',
    )
    parser.add_argument('--mean', type=numbers, metavar='R,G,B', help='mean per channel, subtracted from pixels of 0 to 255')
    parser.add_argument(
        '--std', type=numbers, metavar='R,G,B', help='standard deviation per channel, by which pixels are divided after that'
    )


def _input_options(arguments):
    """Return the fields of an `InputSpec` that are given by options, a dict."""
    fields = {'channels': arguments.channels, 'size': arguments.input_size, 'mean': arguments.mean, 'std': arguments.std}
    options = {name: value for name, value in fields.items() if value is not None}
    if arguments.resize is not None:
        options['resize'] = arguments.resize or None
    elif arguments.input_size is not None:
        options['resize'] = round(arguments.input_size * 256 / 224)
    return options


def input_spec(arguments, description, default, dataset):
    """Return the `InputSpec`: options take precedence over the description, which takes precedence over a default.

    Parameters
    ----------
    arguments : argparse.Namespace
    description : Description or None
        None if the network has no description.
    default : InputSpec
    dataset : str
        Name of the dataset that the default belongs to, for a note on standard error if neither options nor description are given.
    """
    options, written = _input_options(arguments), description and description.input_spec()
    if description and written is None and not options:
        print(f'note: there is no {description.source}; images are prepared as for {dataset}', file=sys.stderr)
    return dataclasses.replace(written or default, **options)


def given_spec(arguments):
    """Return the `InputSpec` of the options, or None if none is given."""
    options = _input_options(arguments)
    return InputSpec(**options) if options else None


def described_spec(arguments, description):
    """Return the `InputSpec` of the options and the `Description`, or None if neither has one."""
    options, written = _input_options(arguments), description.input_spec()
    return dataclasses.replace(written or InputSpec(), **options) if options or written else None


def class_names(arguments, description):
    """Return the names of the classes, a list of str or None, and what contains them, for errors.

    Parameters
    ----------
    arguments : argparse.Namespace
    description : Description or None
        None if the network has no description.
    """
    if arguments.classes_file:
        return listed_names(arguments.classes_file), arguments.classes_file
    return (description.class_names(), description.source) if description else (None, '')


def listed_names(path):
    """Return the class names in a text file, one per line."""
    return [line.strip() for line in read_text(path).strip().splitlines()]
