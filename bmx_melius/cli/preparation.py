"""How images are prepared and classes are called: the options of the commands that classify, before what the export says."""

import dataclasses
import sys

from ..arguments import numbers, positive_int
from ..errors import UserError


def add_options(parser):
    """``--channels``, ``--input-size``, ``--resize``, ``--mean``, ``--std`` and ``--classes-file``."""
    parser.add_argument('--classes-file', metavar='FILE', help='text file with the name of one class a line')
    parser.add_argument('--channels', type=int, choices=(1, 3), help='of the input: gray or RGB')
    parser.add_argument('--input-size', type=positive_int, metavar='N', help='height and width of the input in pixels')
    parser.add_argument(
        '--resize',
        type=int,
        metavar='N',
        help='length of the short side before the centre is cropped; 0 resizes to the input size without a crop '
        '(default with --input-size: 8/7 of it, as 256 is of 224)',
    )
    parser.add_argument('--mean', type=numbers, metavar='R,G,B', help='subtracted from pixels of 0 to 255')
    parser.add_argument('--std', type=numbers, metavar='R,G,B', help='what pixels are then divided by')


def _input_options(arguments):
    """The fields of an `InputSpec` that the options give."""
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
        None for a network without a description.
    default : InputSpec
    dataset : str
        Name of the dataset that the default belongs to, for a note on standard error where neither options nor description are given.
    """
    options, written = _input_options(arguments), description and description.input_spec()
    if description and written is None and not options:
        print(f'note: there is no {description.source}; images are prepared as for {dataset}', file=sys.stderr)
    return dataclasses.replace(written or default, **options)


def class_names(arguments, description, classes):
    """One name a class, or None where nobody gave names.

    Parameters
    ----------
    arguments : argparse.Namespace
    description : Description or None
        None for a network of which nothing is written down.
    classes : int
        Of the network. Raises `UserError` where there are more or fewer names.
    """
    if arguments.classes_file:
        source = arguments.classes_file
        with open(source, encoding='utf-8', errors='replace') as file:
            names = [line.strip() for line in file.read().strip().splitlines()]
    elif description is None:
        return None
    else:
        source = description.source
        names = description.class_names()
    if names is not None and len(names) != classes:
        raise UserError(f'{source} names {len(names)} classes, but the network has {classes}')
    return names
