"""``bmx-melius predict``: classify images with an exported network."""

import csv
import json
import os
import sys

from ..arguments import positive_int, whole_number
from ..errors import UserError, counted, describe_os_error, printable
from ..files.io import replacing, require_writable
from ..vision.pixels import FORMAT_NAMES, SUFFIXES
from . import image_options
from .options import PREFIX_HELP, add_json_flag, exported_network

_EXAMPLES = """\
examples:
  bmx-melius predict out/best photo.jpg
  bmx-melius predict out/best photos --top 1 --json                # all images in the folder photos
  bmx-melius predict out/best photos --csv photos.csv              # a row for each image; --csv - prints them
  bmx-melius predict resnet photo.jpg --classes-file names.txt --input-size 224 --resize 256

For a folder, its images (JPEG, PNG, BMP, TIFF, GIF, WebP, Netpbm, NPY) are classified in the order of names, but not those in subfolders:
give photos/*/ for them. Images that cannot be read are listed in an error after the predictions for all others; the exit status is then 2.

PREFIX-summary.json, which training writes with the exported files, contains the preprocessing of images and the class names, and so do
packed files; options override it. Without both, images are preprocessed as for ImageNet: short side 256, centre crop 224, ImageNet's mean
and standard deviation. Packed networks need only NumPy and Pillow.
"""


_STANDARD_OUTPUT = '-'  # as the value of --csv
_NAMED = 5  # how many unreadable images an error lists


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'predict',
        help='classify images with an exported network',
        epilog=_EXAMPLES,
        description='Classify images with an exported network and print the most probable classes of each image.',
    )
    parser.add_argument('prefix', metavar='PREFIX', help=PREFIX_HELP)
    parser.add_argument('images', metavar='IMAGE|FOLDER', nargs='+', help=f'{FORMAT_NAMES} files, or folders of them')
    parser.add_argument('--top', type=positive_int, default=5, metavar='K', help='number of classes to show (default: %(default)s)')
    parser.add_argument(
        '--epoch', type=whole_number, default=0, metavar='E', help='epoch number in the name of the parameter file (default: %(default)s)'
    )
    image_options.add_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        '--csv',
        metavar='FILE',
        help='write a table instead, a row for each image: its path, the K most probable classes and their probabilities; -: to standard '
        'output',
    )
    add_json_flag(form)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the classes of each image as soon as they are computed, or one JSON object or table at the end."""
    from ..vision.preprocessing import InputSpec

    if arguments.csv and arguments.csv != _STANDARD_OUTPUT:
        require_writable(arguments.csv)
    exported = exported_network(arguments.prefix)
    load = _loader(exported, arguments.epoch)
    description = exported.description()
    spec = image_options.input_spec(arguments, description, InputSpec(), 'ImageNet')
    classifier = load(spec, *image_options.class_names(arguments, description))
    images, predictions, unreadable = _list_images(arguments.images), [], []
    for image in images:
        try:
            pixels = spec.array(image)
        except UserError as error:
            unreadable.append(str(error))
            continue
        except OSError as error:
            unreadable.append(describe_os_error(error))
            continue
        (top,) = classifier.most_probable(classifier(pixels, [image]), arguments.top)
        predictions.append({'image': image, 'top': top})
        if not (arguments.json or arguments.csv):
            lines = [f'{row["probability"]:8.2%}  {_label(row)}' for row in top]
            print('\n'.join([printable(image), *lines]), file=output)
    if arguments.json and predictions:
        json.dump({'network': exported.prefix, 'input': spec.to_json(), 'predictions': predictions}, output, indent=1)
        print(file=output)
    if arguments.csv and predictions:
        _write_table(arguments.csv, predictions, output)
    if len(unreadable) == 1:
        raise UserError(unreadable[0])
    if unreadable:
        more = f'; and {len(unreadable) - _NAMED} more' if len(unreadable) > _NAMED else ''
        raise UserError(f'{len(unreadable)} of {len(images)} images cannot be read: {"; ".join(unreadable[:_NAMED])}{more}')


def _loader(exported, epoch):
    """Return the function that makes a `Classifier` of an `InputSpec`, class names and their source.

    Raises `ModuleNotFoundError` if it needs a missing MXNet.
    """
    from ..deployment.runtime.packed_files import runs_without_mxnet
    from ..deployment.runtime.session import Session, classifier_of

    if epoch == 0 and runs_without_mxnet(exported):
        return lambda *described: classifier_of(Session(exported), exported.prefix, *described)
    from .mxnet_networks import exported_classifier

    return lambda *described: exported_classifier(exported, epoch, *described)


def _label(row):
    """Return the name of a class, or its number if it has none."""
    return row['class'] if row['name'] is None else row['name']


def _write_table(path, predictions, output):
    """Write the predictions as CSV to a file, which replaces an older one atomically, or to `output`; to a terminal as `printable` text."""
    numbers = range(1, len(predictions[0]['top']) + 1)
    rows = [['image', *(f'class_{number}' for number in numbers), *(f'probability_{number}' for number in numbers)]]
    for prediction in predictions:
        top = prediction['top']
        rows.append([prediction['image'], *map(_label, top), *(row['probability'] for row in top)])
    if path == _STANDARD_OUTPUT:
        if output.isatty():  # elsewhere names are data
            rows = [[printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        csv.writer(output, lineterminator='\n').writerows(rows)
        return
    with replacing(path) as temporary, open(temporary, 'w', newline='', encoding='utf-8', errors='surrogateescape') as file:
        csv.writer(file, lineterminator='\n').writerows(rows)
    print(f'{path}: {counted(len(predictions), "image", ",")}', file=output)


def _list_images(paths):
    """Return the paths of the images in a list of files and folders."""
    images = []
    for path in paths:
        if not os.path.isdir(path):
            images.append(path)
            continue
        names = sorted(os.listdir(path))
        folders = {name for name in names if os.path.isdir(os.path.join(path, name))}
        found = [name for name in names if name.lower().endswith(SUFFIXES) and name not in folders]
        ignored = len(names) - len(found) - len(folders)
        if not found:
            raise UserError(
                f'{path} has no {FORMAT_NAMES} files in it'
                + (f', but folders: give {os.path.join(path, "*", "")} for the images in them' if folders else '')
            )
        if ignored:
            print(f'note: not classified in {path}: {counted(ignored, "other file")}; {FORMAT_NAMES} files can be', file=sys.stderr)
        images += [os.path.join(path, name) for name in found]
    return images
