"""``bmx-melius score``: classify a large set of images in parallel, into Parquet files."""

import contextlib
import importlib
import json
import os
import time

from ..arguments import positive_int
from ..errors import UserError, counted
from ..files.io import check_folder
from ..process import usable_cores
from . import image_options
from .options import add_json_flag, exit_at_sigterm, exported_network

_EXAMPLES = """\
examples:
  bmx-melius score out/packed photos --output scores                      # all images in photos and its subfolders
  bmx-melius score out/packed rec/val.rec shards/ --output scores --logits      # record files and tar archives
  bmx-melius score out/packed photos --output scores --engine dask --address tcp://scheduler:8786     # workers on several machines

The folder of --output has one Parquet file for each --part-size images: image, class_1, name_1, probability_1, ..., and error, the reason
why an image could not be read. Read all of them with pandas.read_parquet('scores'). The file _SUCCESS appears when no row is missing.

The same command continues after an interruption. Files appear when they are complete and are never computed twice, so that each image has
exactly one row. A part whose worker is killed is computed by another one. Workers need bmx-melius, and the packed files and the images
under the same paths.

PREFIX is a packed network (bmx-melius convert). Neither the command nor its workers need MXNet.
Packages: pip install 'bmx-melius[score]' for --engine local and dask, 'bmx-melius[ray]' for --engine ray.
"""
_ENGINES = {'local': [], 'dask': ['distributed'], 'ray': ['ray']}  # and the packages of each, beside pyarrow


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'score',
        help='classify a large set of images in parallel',
        epilog=_EXAMPLES,
        description='Classify the images of folders, record files and tar archives in parallel, and write the most probable classes of '
        'each image to Parquet files.',
    )
    parser.add_argument(
        'prefix', metavar='PREFIX', help='prefix of the files of a packed network, or the name of one that ships with its weights'
    )
    parser.add_argument(
        'sources', metavar='SOURCE', nargs='+', help='folders (with their subfolders), image files, record files (.rec) or archives (.tar)'
    )
    parser.add_argument('--output', metavar='FOLDER', required=True, help='folder for the Parquet files, created if it does not exist')
    parser.add_argument('--top', type=positive_int, default=5, metavar='K', help='number of classes in a row (default: %(default)s)')
    parser.add_argument('--logits', action='store_true', help='also write the logits of all classes')
    parser.add_argument(
        '--engine',
        choices=_ENGINES,
        default='local',
        help='where the parts are computed: processes of this machine, or workers of Dask or Ray (default: %(default)s)',
    )
    parser.add_argument(
        '--workers', type=positive_int, metavar='N', help='worker processes on this machine, one thread each (default: one for each core)'
    )
    parser.add_argument(
        '--address', metavar='ADDRESS', help='existing cluster: tcp://HOST:PORT of a Dask scheduler, HOST:PORT or auto for Ray'
    )
    parser.add_argument(
        '--batch-size', type=positive_int, default=16, metavar='N', help='images a worker runs at a time (default: %(default)s)'
    )
    parser.add_argument(
        '--part-size', type=positive_int, default=1024, metavar='N', help='images of a Parquet file and of a task (default: %(default)s)'
    )
    image_options.add_options(parser)
    add_json_flag(parser)
    parser.set_defaults(run=run, prepare=None)  # MXNet, which takes seconds to import, is not needed


def run(arguments, output):
    """Compute the parts that are missing in the folder, and print how many images have been classified."""
    if arguments.address and (arguments.engine == 'local' or arguments.workers):
        conflict = '--workers' if arguments.workers else '--engine local'
        raise UserError(f'--address names an existing cluster, which excludes {conflict}')
    for package in ('pyarrow', *_ENGINES[arguments.engine]):  # before the images are listed, which may take minutes
        importlib.import_module(package)
    check_folder(arguments.output)
    exit_at_sigterm()
    job, begin = _open_job(arguments), time.monotonic()
    with job.opened() as missing:
        done, unreadable = _compute(arguments, job.scoring, missing) if missing else (0, 0)
        job.finish()
    _report(arguments, output, job, done, unreadable, time.monotonic() - begin)


def _compute(arguments, scoring, parts):
    """Compute parts; return the numbers of their images and of unreadable images."""
    from ..reporting import ProgressLine
    from ..scoring.engines import ENGINES

    workers, done, unreadable = min(arguments.workers or usable_cores(), len(parts)), 0, 0
    results = ENGINES[arguments.engine](scoring, parts, workers, arguments.address)
    total = sum(len(part.images) for part in parts)
    with ProgressLine(total=total, description='scoring', unit='images') as bar, contextlib.closing(results):
        for _, images, without_class in results:
            done, unreadable = done + images, unreadable + without_class
            bar.update(images)
    return done, unreadable


def _open_job(arguments):
    from ..deployment.runtime.session import Session, classifier_of
    from ..scoring.images import list_images
    from ..scoring.job import Job

    exported = exported_network(arguments.prefix)
    session = Session(exported)
    description = exported.description()
    spec = image_options.described_spec(arguments, description)
    if spec is None:
        raise UserError(
            f'{exported.prefix} has no description of the preprocessing of images: give --input-size, --resize, --mean and --std'
        )
    classifier = classifier_of(session, exported.prefix, spec, *image_options.class_names(arguments, description))
    return Job(
        list_images(arguments.sources),
        arguments.part_size,
        arguments.output,
        prefix=exported.prefix,
        spec=spec,
        class_names=classifier.class_names,
        top=min(arguments.top, classifier.classes),
        logits=arguments.logits,
        batch_size=arguments.batch_size,
    )


def _report(arguments, output, job, done, unreadable, seconds):
    total = sum(len(part.images) for part in job.parts)
    facts = {
        'folder': job.scoring.folder,
        'images': total,
        'scored_now': done,
        'unreadable_now': unreadable,
        'seconds': seconds,
        'images_per_second': done / seconds if done else None,
    }
    if arguments.json:
        json.dump(facts, output, indent=1)
        print(file=output)
        return
    before = f', {total - done:,} of them before' if done < total else ''
    speed = f'; {done / seconds:,.1f} images a second' if done else ''
    errors = f'; {unreadable:,} could not be read, see the column error' if unreadable else ''
    print(f'{os.path.relpath(job.scoring.folder)}: {counted(total, "image", ",")}{before}{speed}{errors}', file=output)
