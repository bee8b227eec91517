"""``bmx-melius evaluate``: accuracy of a network on labelled images, and comparison with another network."""

import os
import sys

from ..arguments import add_val_fraction, positive_int
from ..errors import UserError, counted
from ..files.exported import Exported
from ..files.io import require_suffix, require_writable
from ..files.symbol_json import SymbolJson
from ..reporting import ProgressLine
from . import image_options
from .evaluation_report import EvaluationReport
from .options import add_json_flag, exported_network, print_json, require_files_or_network

_LONG = 10  # seconds of the network, from which on a faster form of it is worth a note
_EXAMPLES = """\
examples:
  bmx-melius evaluate out/best digits
  bmx-melius evaluate out/best photos --per-class --confusion confusion.png     # photos/CLASS/*.jpg or photos/val/CLASS/*.jpg
  bmx-melius evaluate out/best photos --all-images            # photos/CLASS/*.jpg: also those on which it was trained
  bmx-melius evaluate out/best imagenet/rec/val.rec --compare out/packed        # effect of packing
  bmx-melius evaluate meliusnet22 val.rec --params params/epoch-0120.params     # a checkpoint of training

PREFIX-summary.json, which training writes with the exported files, contains the preprocessing of images and the class names; options
override it. Folders are matched with classes by name. Images are read by -j threads. A packed network uses one thread per usable core;
OMP_NUM_THREADS limits the threads of any network. images/s excludes reading, but includes the slower first run: for few images, use bench.
"""


def add_parser(commands):
    """Add the parser of the command to `commands`."""
    parser = commands.add_parser(
        'evaluate',
        help='measure the top-1 and top-5 accuracy of a network on labelled images',
        epilog=_EXAMPLES,
        description='Evaluate a network, packed or not, on labelled images: accuracy, confusions, difference from another network.',
    )
    parser.add_argument(
        'network',
        metavar='PREFIX|MODEL',
        help='prefix of the exported files PREFIX-symbol.json and PREFIX-0000.params, or a network of the zoo',
    )
    parser.add_argument(
        'data',
        metavar='DATA',
        help='digits, glyphs, mnist, fashion-mnist, cifar10, cifar100, a folder with CLASS/*.jpg or val/CLASS/*.jpg, or a '
        '.rec file with an .idx file of the same name',
    )
    parser.add_argument(
        '--data-dir',
        metavar='DIR',
        help='folder of the files of mnist, fashion-mnist, cifar10 or cifar100 (default: ~/.mxnet/datasets/DATA)',
    )
    add_val_fraction(
        parser,
        'for a folder with CLASS/*.jpg, evaluate only the validation images of a training with this --val-fraction (default: that of '
        'the network if it was trained on this folder; all images of others)',
    )
    parser.add_argument('--all-images', action='store_true', help='evaluate all images of a folder, also those for training')
    parser.add_argument('--compare', metavar='PREFIX', help='also evaluate these exported files on the same images')
    parser.add_argument(
        '--per-class',
        action='store_true',
        help='also show recall (the accuracy of the class), precision and F1 of each class, and the class it is most often mistaken for',
    )
    parser.add_argument('--confusion', metavar='FILE', help='draw the confusion matrix (.png, .pdf, .svg)')
    parser.add_argument(
        '--mistakes',
        metavar='FILE',
        help='draw the misclassified images, those with the most probable wrong class first (.png, .pdf, .svg)',
    )
    parser.add_argument('--output', metavar='FILE', help='write the prediction for each image (.csv)')
    parser.add_argument('--batch-size', type=positive_int, default=64, metavar='N', help='images per batch (default: %(default)s)')
    parser.add_argument(
        '-j',
        '--num-data-workers',
        dest='num_workers',
        type=positive_int,
        default=2,
        metavar='N',
        help='threads that read images (default: %(default)s)',
    )
    image_options.add_options(parser)
    parser.add_argument(
        '--params', metavar='FILE', help='weights of a network of the zoo; checkpoints of training also store the arguments of the network'
    )
    parser.add_argument(
        '--initial-layers',
        metavar='STEM',
        help='stem of a network of the zoo (default: as in the checkpoint, or the default of training for DATA)',
    )
    parser.add_argument(
        '--classes', type=positive_int, metavar='N', help='classes of a network of the zoo (default: as in the checkpoint, or in DATA)'
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Evaluate, print tables or a JSON object, and write the files of the options."""
    from ..analysis.evaluation import evaluate
    from ..data.datasets import DATASETS
    from ..data.opening import open_images
    from ..data.split import Split

    for path in filter(None, (arguments.confusion, arguments.mistakes)):
        from ..analysis.confusion_plot import SUFFIXES, draw, save  # needs matplotlib

        require_suffix(path, SUFFIXES)
    for path in filter(None, (arguments.confusion, arguments.mistakes, arguments.output)):  # an error before the work, not after it
        require_writable(path)

    exported = _exported(arguments)
    description = _description(arguments, exported)
    spec = image_options.input_spec(arguments, description, DATASETS[_dataset(arguments)].input, _dataset(arguments))
    if arguments.all_images and arguments.val_fraction:
        raise UserError('--all-images and --val-fraction contradict each other: give one')
    split = None if description is None or arguments.all_images else Split.from_json(description.fields.get('split'), description.source)
    images = open_images(arguments.data, spec, arguments.num_workers, arguments.val_fraction, split=split, data_dir=arguments.data_dir)
    networks = _networks(arguments, exported, description, images, spec)
    classes, names = networks[0].classes, networks[0].class_names
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
    if arguments.mistakes:
        from ..analysis import mistakes_plot

        mistakes = report.mistakes()
        title = f'{arguments.network} on {images.origin}: {len(mistakes)} of {len(images)} images are misclassified'
        figure = mistakes_plot.draw(lambda number: spec.crop(images.dataset[number][0]).asnumpy(), mistakes, title)
        save(figure, arguments.mistakes)
    if arguments.json:
        print_json({'input': spec.to_json(), **report.to_json(arguments.per_class)}, output)
    else:
        print(report.text(arguments.per_class), file=output)
    if exported and evaluations[0].seconds > _LONG:
        _advise_packing(exported)


def _exported(arguments):
    """Return the exported network, or None for a network of the zoo, for which --params is required."""
    exported = exported_network(arguments.network) if arguments.params is None else Exported(arguments.network)
    of_zoo = {'--params': arguments.params, '--initial-layers': arguments.initial_layers, '--classes': arguments.classes}
    if os.path.exists(exported.symbol_file):
        for flag, value in of_zoo.items():
            if value is not None:
                raise UserError(f'{flag} is for networks of the zoo, but {arguments.network} is an exported network')
        return exported
    require_files_or_network(exported)
    if arguments.params is None:
        raise UserError(
            f'there is no {exported.symbol_file}; for the network {arguments.network} of the zoo, give its weights with --params FILE'
        )
    if not os.path.isfile(arguments.params):
        raise UserError(f'--params: there is no file {arguments.params}')
    return None


def _description(arguments, exported):
    """Return the `Description` of the exported network, or of the checkpoint of the weights; None if there is none."""
    if exported:
        return exported.description()
    from ..training.saving.stored_checkpoints import description_of  # imported only for weights of a training run

    return description_of(arguments.params)


def _dataset(arguments):
    """Return the key of `DATASETS` with the defaults for DATA; for folders and record files ImageNet's."""
    from ..data.datasets import DATASETS

    return arguments.data if arguments.data in DATASETS else 'imagenet'


def _networks(arguments, exported, description, images, spec):
    """Return the classifier to evaluate and, with --compare, the one to compare it with."""
    from ..graph.tracing import read_graph
    from .mxnet_networks import block_classifier, exported_classifier

    described = (spec, *image_options.class_names(arguments, description))
    if exported:
        networks = [exported_classifier(exported, 0, *described)]
    else:
        network = _of_zoo(arguments, description, images)
        networks = [block_classifier(arguments.network, network, read_graph(network, (1, *spec.shape)), *described)]
    if arguments.compare:
        other = exported_network(arguments.compare)
        others = other.description()
        for kind, mine, its in (
            ('input', description and description.input_spec(), others.input_spec()),
            ('class_names', description and description.class_names(), others.class_names()),
        ):
            if mine is not None and its is not None and mine != its:
                raise UserError(f'{others.source} has another {kind} than {description.source}: the networks cannot be compared')
        networks.append(exported_classifier(other, 0, spec))
        for trait in ('classes', 'gives_probabilities'):
            mine, its = (getattr(network, trait) for network in networks)
            if mine != its:
                raise UserError(f'{arguments.network} and {arguments.compare} cannot be compared: {trait} {mine} and {its}')
    return networks


def _of_zoo(arguments, description, images):
    """Build a network of the zoo, from the options, else the description, else the defaults of the data, and load its weights."""
    import mxnet as mx

    from model_zoo import default_of, get_model, takes_option

    from ..data.datasets import DATASETS
    from ..errors import last_line
    from ..files.parameters import read_parameters

    usual = {'classes': images.classes}
    written = description.model() if description else {}
    if not written and takes_option(arguments.network, 'initial_layers'):  # a description without a stem is of the network's own
        usual['initial_layers'] = DATASETS[_dataset(arguments)].initial_layers or default_of(arguments.network, 'initial_layers')
    given = {'name': arguments.network, 'classes': arguments.classes, 'initial_layers': arguments.initial_layers}
    model = {**usual, **written, **{name: value for name, value in given.items() if value is not None}}
    network = get_model(**model)
    stem = f' and --initial-layers {model["initial_layers"]}' if 'initial_layers' in model else ''
    read_parameters(arguments.params)  # refuses damaged files, for which MXNet allocates whatever they announce
    try:
        network.load_parameters(arguments.params)
    except (AssertionError, ValueError, mx.MXNetError) as error:
        raise UserError(
            f'{arguments.params} is damaged, or not of the network {arguments.network} with {model["classes"]} classes (--classes)'
            f'{stem}: {last_line(error)}'
        ) from error
    if not written:
        print(
            f'note: no checkpoint beside {arguments.params} describes its network; assuming {counted(model["classes"], "class")}{stem}',
            file=sys.stderr,
        )
    network.hybridize(static_alloc=True, static_shape=True)
    return network


def _advise_packing(exported):
    """Say how a network whose binary layers MXNet computes in float arithmetic is evaluated in less time."""
    from ..nn.marks import read_marks

    if any(read_marks(node['attrs']) for node in SymbolJson.parse(exported.symbol_text, exported.symbol_file).nodes):
        advice = f'a packed network is faster: {exported.packing_command}'
        print(f'note: MXNet computed the binary layers in float arithmetic; {advice}', file=sys.stderr)


def _with_progress(batches, numbers, total):
    """Yield the batches with the class numbers of the network as labels, and show the progress."""
    with ProgressLine(total=total, description='evaluating', unit='images') as bar:
        for images, labels, names in batches:
            images.wait_to_read()  # pending work of reading must not count as time of the network
            yield images, numbers[labels], names
            bar.update(len(labels))
