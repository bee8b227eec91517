"""``bmx-melius pack-images``: pack folders of images to record files."""

import argparse
import os

from ..arguments import add_val_fraction, positive_int, thread_count, whole_number
from ..errors import UserError, counted
from .options import add_json_flag, exit_at_sigterm, print_json

_EXAMPLES = """\
examples:
  bmx-melius pack-images ~/.mxnet/datasets/imagenet                # train/CLASS/*, val/CLASS/* to rec/train.rec, ...
  bmx-melius pack-images imagenet --expect-imagenet --val-labels imagenet_2012_validation_synset_labels.txt      # val/*.JPEG
  bmx-melius pack-images photos --val-fraction 0.1                 # photos/CLASS/*; a tenth of each class becomes val.rec
  bmx-melius pack-images photos --resize 0 --output photos-rec     # training images are not resized either

To train on the record files: bmx-melius train --use-rec --data-dir DIR. --resize does not apply to validation images, which are packed
unchanged, so that training validates on the same pixels as evaluate and predict with the original files.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'pack-images',
        help='pack folders of images to record files for training',
        epilog=_EXAMPLES,
        description='Pack DIR/train/CLASS/* and DIR/val/CLASS/*, or DIR/CLASS/*, to record files with '
        "MXNet's im2rec, and check their counts.",
    )
    parser.add_argument('folder', metavar='DIR', help='folder that contains train and val, or a folder for each class')
    add_val_fraction(parser)
    parser.add_argument('--output', metavar='FOLDER', help='new folder for the record files (default: DIR/rec)')
    parser.add_argument(
        '--val-labels',
        metavar='FILE',
        help="classes of images directly in DIR/val, as in ImageNet's archive: one line per image in the order of "
        'their names, "CLASS" or "IMAGE CLASS"',
    )
    parser.add_argument(
        '--resize',
        type=whole_number,
        default=480,
        metavar='N',
        help='length of the short side of training images in pixels; 0 packs them unchanged (default: %(default)s)',
    )
    parser.add_argument(
        '--quality', type=_quality, default=95, metavar='Q', help='JPEG quality of resized images, 1 to 100 (default: %(default)s)'
    )
    parser.add_argument(
        '--threads',
        type=thread_count,
        default='0',
        metavar='N',
        help='processes that decode and encode images (default: 0: one for each core that may be used)',
    )
    parser.add_argument(
        '--expect-imagenet',
        action='store_true',
        help='raise an error unless there are 1,000 classes with 1,281,167 training and 50,000 validation images',
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """List, pack and check the images, and print what was packed."""
    from ..data.im2rec import list_images, pack

    if arguments.resize < 0:
        raise UserError(f'--resize {arguments.resize}: give a length in pixels, or 0')
    folder = os.path.expanduser(arguments.folder)
    target = os.path.expanduser(arguments.output or os.path.join(folder, 'rec'))
    images = list_images(folder, arguments.val_labels, arguments.val_fraction)
    difference = images.difference_from_imagenet()
    if difference and arguments.expect_imagenet:
        raise UserError(f'{difference} (--expect-imagenet)')
    exit_at_sigterm()
    pack(images, target, arguments.resize, arguments.quality, arguments.threads)
    sizes = {part: os.path.getsize(os.path.join(target, f'{part}.rec')) for part in images.images}
    if arguments.json:
        print_json({'folder': target, **images.counts(), 'bytes': sizes}, output)
        return
    if difference and images.looks_like_imagenet():
        print(f'note: {difference}', file=output)
    for part, size in sizes.items():
        print(
            f'{os.path.join(target, part)}.rec  {counted(len(images.images[part]), "image", ",")} of '
            f'{counted(len(images.class_names), "class", ",")}, {size / 2**20:,.1f} MB',
            file=output,
        )


def _quality(text):
    value = positive_int(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f'expected 1 to 100, not {value}')
    return value
