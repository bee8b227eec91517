"""``bmx-melius evaluate``: how good a network is on labelled images, and whether another one is as good."""

import json
import os
import sys

from ..arguments import positive_int
from ..errors import UserError
from ..exported import Exported
from ..files import require_suffix, require_writable
from . import preparation
from .evaluation_report import EvaluationReport
from .options import add_json_flag

_EXAMPLES = """\
examples:
  bmx-melius evaluate out/best digits
  bmx-melius evaluate out/best photos --per-class --confusion confusion.png     # photos/CLASS/*.jpg or photos/val/CLASS/*.jpg
  bmx-melius evaluate out/best imagenet/rec/val.rec --compare out/packed        # what packing costs
  bmx-melius evaluate meliusnet22 val.rec --params params/epoch-0120.params     # a checkpoint of training

PREFIX-summary.json, which training writes beside the exported files, says how images are prepared and how classes are called. The options
go before it. Folders are matched with classes by name. Reading takes -j threads; a packed network computes with a thread for each usable
core, any network with fewer where OMP_NUM_THREADS says so. images/s are those of the network alone, its first run included, so for few
images bench tells more.
"""


def add_parser(commands):
    """Add the command."""
    parser = commands.add_parser(
        'evaluate',
        help='top-1 and top-5 accuracy of a network on labelled images',
        epilog=_EXAMPLES,
        description='Evaluate a network, packed or not, on labelled images: accuracy, mistakes, and difference from another network.',
    )
    parser.add_argument(
        'network', metavar='PREFIX|MODEL', help='of the exported files PREFIX-symbol.json and PREFIX-0000.params, or a network of the zoo'
    )
    parser.add_argument(
        'data',
        metavar='DATA',
        help='digits, mnist, fashion-mnist, cifar10, cifar100, a folder with CLASS/*.jpg or val/CLASS/*.jpg, or a '
        '.rec file with its .idx beside it',
    )
    parser.add_argument('--compare', metavar='PREFIX', help='evaluate these exported files on the same images, too')
    parser.add_argument('--per-class', action='store_true', help='also show each class: its accuracy, and what it is taken for')
    parser.add_argument('--confusion', metavar='FILE', help='draw which classes are taken for which (.png, .pdf, .svg)')
    parser.add_argument('--output', metavar='FILE', help='write the prediction for each image (.csv)')
    parser.add_argument('--batch-size', type=positive_int, default=64, metavar='N', help='images at once (default: %(default)s)')
    parser.add_argument(
        '-j',
        '--num-data-workers',
        dest='num_workers',
        type=positive_int,
        default=2,
        metavar='N',
        help='threads that read images (default: %(default)s)',
    )
    preparation.add_options(parser)
    parser.add_argument(
        '--params', metavar='FILE', help='weights of a network of the zoo; a checkpoint of training says itself how the network was made'
    )
    parser.add_argument(
        '--initial-layers', metavar='STEM', help="of a network of the zoo (default: as the checkpoint says, or training's for DATA)"
    )
    parser.add_argument(
        '--classes', type=positive_int, metavar='N', help='of a network of the zoo (default: as the checkpoint says, or those of DATA)'
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the tables or the JSON object; write the files that are asked for."""
    from ..analysis.confusion_plot import SUFFIXES, draw, save
    from ..analysis.evaluation import evaluate
    from ..data.datasets import DATASETS
    from ..data.opening import open_images

    if arguments.confusion:
        require_suffix(arguments.confusion, SUFFIXES)
    for path in filter(None, (arguments.confusion, arguments.output)):  # told before the work, not after it
        require_writable(path)

    exported = _exported(arguments)
    description = _description(arguments, exported)
    spec = preparation.input_spec(arguments, description, DATASETS[_dataset(arguments)].input, _dataset(arguments))
    images = open_images(arguments.data, spec, arguments.num_workers)
    networks = _networks(arguments, exported, description, images, spec)
    classes = networks[0].classes
    names = preparation.class_names(arguments, description, classes)
    numbers = images.numbers_in(classes, names)
    batches = _with_progress(images.batches(spec, arguments.batch_size, arguments.num_workers), numbers, len(images))
    evaluations, differences = evaluate(networks, batches)

    names = names or images.class_names or [str(number) for number in range(classes)]
    scores = 'probability' if networks[0].gives_probabilities else 'logit'
    report = EvaluationReport(arguments.network, arguments.compare, images, names, scores, evaluations, differences)
    if arguments.output:
        report.write_predictions(arguments.output)
    if arguments.confusion:
        title = f'{arguments.network} on {images.origin}: top-1 {evaluations[0].accuracy.top1:.2%}'
        save(draw(evaluations[0].confusion.counts, names, title), arguments.confusion)
    if arguments.json:
        json.dump({'input': spec.to_json(), **report.to_json(arguments.per_class)}, output, indent=1)
        print(file=output)
    else:
        print(report.text(arguments.per_class), file=output)


def _exported(arguments):
    """The exported network; None where a network of the zoo is meant, whose weights must then be given."""
    exported = Exported(arguments.network)
    of_zoo = {'--params': arguments.params, '--initial-layers': arguments.initial_layers, '--classes': arguments.classes}
    if os.path.exists(exported.symbol_file):
        for flag, value in of_zoo.items():
            if value is not None:
                raise UserError(f'{flag} is for networks of the zoo; {arguments.network} is as it was exported')
        return exported
    if os.sep in arguments.network or arguments.network.endswith('.json'):
        raise UserError(f'there is no {exported.symbol_file}: give the PREFIX of exported files, or the name of a network')
    if arguments.params is None:
        raise UserError(f'there is no {exported.symbol_file}; for {arguments.network} of the zoo give its weights, --params FILE')
    if not os.path.isfile(arguments.params):
        raise UserError(f'--params: there is no file {arguments.params}')
    return None


def _description(arguments, exported):
    """The `Description` beside exported files, or of the checkpoint that the weights are of; None where there is none."""
    if exported:
        return exported.description()
    from ..training.saving.checkpoints import description_of  # only the weights of a training run need it

    return description_of(arguments.params)


def _dataset(arguments):
    """The row of `DATASETS` with the defaults for DATA: folders and record files are like ImageNet."""
    from ..data.datasets import DATASETS

    return arguments.data if arguments.data in DATASETS else 'imagenet'


def _networks(arguments, exported, description, images, spec):
    """The classifier that is evaluated and, if wanted, the one it is compared with."""
    from .classifier import Classifier

    networks = [Classifier.load(exported, 0, spec) if exported else _of_zoo(arguments, description, images, spec)]
    if arguments.compare:
        other = Exported(arguments.compare)
        others = other.description()
        for kind, mine, its in (
            ('input', description and description.input_spec(), others.input_spec()),
            ('class_names', description and description.class_names(), others.class_names()),
        ):
            if mine is not None and its is not None and mine != its:
                raise UserError(f'{others.source} has another {kind} than {description.source}: they cannot be compared')
        networks.append(Classifier.load(other, 0, spec))
        for trait in ('classes', 'gives_probabilities'):
            mine, its = (getattr(network, trait) for network in networks)
            if mine != its:
                raise UserError(f'{arguments.network} and {arguments.compare} cannot be compared: {trait} {mine} and {its}')
    return networks


def _of_zoo(arguments, description, images, spec):
    """A network with weights of a file; the options, before what training wrote down, before what is usual for the data, say which."""
    import mxnet as mx

    from model_zoo import get_model

    from ..analysis.graph import Graph
    from ..data.datasets import DATASETS
    from ..errors import last_line
    from .classifier import Classifier

    usual = {'classes': images.classes, 'initial_layers': DATASETS[_dataset(arguments)].initial_layers}
    given = {'name': arguments.network, 'classes': arguments.classes, 'initial_layers': arguments.initial_layers}
    written = description.model() if description else {}
    model = {**usual, **written, **{name: value for name, value in given.items() if value is not None}}
    network = get_model(**model)
    try:
        network.load_parameters(arguments.params)
    except (AssertionError, ValueError, mx.MXNetError) as error:
        raise UserError(
            f'{arguments.params} is damaged, or of another network than {arguments.network} with {model["classes"]} classes (--classes) '
            f'and --initial-layers {model["initial_layers"]}: {last_line(error)}'
        ) from error
    if not written:
        print(
            f'note: no checkpoint beside {arguments.params} says how its network was made; it is taken for one with {model["classes"]} '
            f'classes and --initial-layers {model["initial_layers"]}',
            file=sys.stderr,
        )
    network.hybridize(static_alloc=True, static_shape=True)
    return Classifier(arguments.network, network, Graph.read(network, (1, *spec.shape)))


def _with_progress(batches, numbers, total):
    """The batches with labels as the network counts classes; a bar on standard error, if that is a terminal, shows the time left."""
    from tqdm import tqdm

    with tqdm(total=total, desc='evaluating', unit=' images', unit_scale=True, dynamic_ncols=True, disable=None) as bar:
        for images, labels, names in batches:
            images.wait_to_read()  # what is still to be done for reading is not the network's time
            yield images, numbers[labels], names
            bar.update(len(labels))
