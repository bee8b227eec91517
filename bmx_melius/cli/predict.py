"""``bmx-melius predict``: what an exported network sees in images."""

import json
import os
import sys

from ..arguments import positive_int
from ..errors import UserError
from ..exported import Exported
from . import preparation
from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius predict out/best photo.jpg
  bmx-melius predict out/best photos --top 1 --json                # all images in the folder photos
  bmx-melius predict resnet photo.jpg --classes-file names.txt --input-size 224 --resize 256

Of a folder, the JPEG, PNG, TIFF and BMP files in it are classified in the order of their names; those in folders inside it are not: give
photos/*/ for them. Images that cannot be read are named after the predictions for all others, and the exit status is 2.

PREFIX-summary.json, which training writes beside the exported files, says how images are prepared and how classes are called. The options
below go before it. Without it and them images are prepared as for ImageNet: short side 256, centre 224, ImageNet's mean and deviation.
"""


_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff')  # of what MXNet decodes
_NAMED = 5  # so many images that cannot be read are named


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
        'images', metavar='IMAGE|FOLDER', nargs='+', help='JPEG, PNG, TIFF or BMP, gray and transparent ones, too; or folders of them'
    )
    parser.add_argument('--top', type=positive_int, default=5, metavar='K', help='how many classes to show (default: %(default)s)')
    parser.add_argument('--epoch', type=int, default=0, metavar='E', help='number in the name of the parameter file (default: %(default)s)')
    preparation.add_options(parser)
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the classes of each image as soon as they are known, or one JSON object at the end."""
    from ..preprocessing import InputSpec
    from .classifier import Classifier

    exported = Exported(arguments.prefix)
    spec = preparation.input_spec(arguments, exported.description(), InputSpec(), 'ImageNet')
    classifier = Classifier.load(exported, arguments.epoch, spec)
    names = preparation.class_names(arguments, exported.description(), classifier.classes)
    images, predictions, unreadable = _list_images(arguments.images), [], []
    for image in images:
        try:
            pixels = spec.load(image)
        except (UserError, OSError) as error:
            unreadable.append(str(error))
            continue
        (probabilities,) = classifier.probabilities(classifier(pixels, [image]))
        best = (-probabilities).argsort(kind='stable')[: arguments.top]
        top = [{'class': int(index), 'name': names[index] if names else None, 'probability': float(probabilities[index])} for index in best]
        if arguments.json:
            predictions.append({'image': image, 'top': top})
        else:
            lines = [f'{row["probability"]:8.2%}  {row["class"] if row["name"] is None else row["name"]}' for row in top]
            print('\n'.join([image, *lines]), file=output)
    if arguments.json and predictions:
        json.dump({'network': exported.prefix, 'input': spec.to_json(), 'predictions': predictions}, output, indent=1)
        print(file=output)
    if len(unreadable) == 1:
        raise UserError(unreadable[0])
    if unreadable:
        more = f'; and {len(unreadable) - _NAMED} more' if len(unreadable) > _NAMED else ''
        raise UserError(f'{len(unreadable)} of {len(images)} images cannot be read: {"; ".join(unreadable[:_NAMED])}{more}')


def _list_images(paths):
    """The images of a list of files and folders."""
    images = []
    for path in paths:
        if not os.path.isdir(path):
            images.append(path)
            continue
        names = sorted(os.listdir(path))
        folders = {name for name in names if os.path.isdir(os.path.join(path, name))}
        found = [name for name in names if name.lower().endswith(_SUFFIXES) and name not in folders]
        ignored = len(names) - len(found) - len(folders)
        if not found:
            raise UserError(
                f'{path} has no JPEG, PNG, TIFF or BMP files in it'
                + (f', but folders: give {os.path.join(path, "*", "")} for the images in them' if folders else '')
            )
        if ignored:
            print(f'note: {ignored} other files in {path} are not classified; JPEG, PNG, TIFF and BMP can be', file=sys.stderr)
        images += [os.path.join(path, name) for name in found]
    return images
