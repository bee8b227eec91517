"""``bmx-melius predict``: what an exported network sees in images."""

import json
import sys

from ..arguments import positive_int
from ..exported import Exported
from . import preparation
from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius predict out/best photo.jpg
  bmx-melius predict out/best *.png --top 1 --json
  bmx-melius predict resnet photo.jpg --classes-file names.txt --input-size 224 --resize 256

PREFIX-summary.json, which training writes beside the exported files, says how images are prepared and how classes are called. The options
below go before it. Without it and them images are prepared as for ImageNet: short side 256, centre 224, ImageNet's mean and deviation.
"""


def add_parser(commands):
    """Add the command."""
    parser = commands.add_parser(
        'predict',
        help='classify images with an exported network',
        epilog=_EXAMPLES,
        description='Classify images with an exported network: the most probable classes of each.',
    )
    parser.add_argument('prefix', metavar='PREFIX', help='of the exported files PREFIX-symbol.json and PREFIX-0000.params')
    parser.add_argument(
        'images', metavar='IMAGE', nargs='+', help='JPEG, PNG or whatever else OpenCV reads; gray and transparent ones, too'
    )
    parser.add_argument('--top', type=positive_int, default=5, metavar='K', help='how many classes to show (default: %(default)s)')
    parser.add_argument('--epoch', type=int, default=0, metavar='E', help='number in the name of the parameter file (default: %(default)s)')
    preparation.add_options(parser)
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the classes of each image as soon as they are known, or one JSON object at the end."""
    from .classifier import Classifier

    exported = Exported(arguments.prefix)
    spec = _input_spec(arguments, exported)
    classifier = Classifier.load(exported, arguments.epoch, spec)
    names = preparation.class_names(arguments, exported.description(), classifier.classes)
    predictions = []
    for image in arguments.images:
        (probabilities,) = classifier.probabilities(classifier(spec.load(image), [image]))
        best = (-probabilities).argsort(kind='stable')[: arguments.top]
        top = [{'class': int(index), 'name': names[index] if names else None, 'probability': float(probabilities[index])} for index in best]
        if arguments.json:
            predictions.append({'image': image, 'top': top})
        else:
            lines = [f'{row["probability"]:8.2%}  {row["class"] if row["name"] is None else row["name"]}' for row in top]
            print('\n'.join([image, *lines]), file=output)
    if arguments.json:
        json.dump({'network': exported.prefix, 'input': spec.to_json(), 'predictions': predictions}, output, indent=1)
        print(file=output)


def _input_spec(arguments, exported):
    """The options, before what training wrote down, before ImageNet's values."""
    from ..preprocessing import InputSpec

    written = exported.description().input_spec()
    if written is None and not preparation.input_options(arguments):
        print(f'note: there is no {exported.description_file}; images are prepared as for ImageNet', file=sys.stderr)
    return preparation.input_spec(arguments, written or InputSpec())
