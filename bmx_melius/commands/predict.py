"""``bmx-melius predict``: what an exported network sees in images."""

import dataclasses
import json
import math
import sys
import warnings

from ..errors import UserError, last_line
from .arguments import add_json_flag, numbers, positive_int
from .exported import Exported

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
    parser.add_argument('--classes-file', metavar='FILE', help='text file with the name of one class a line')
    parser.add_argument('--epoch', type=int, default=0, metavar='E', help='number in the name of the parameter file (default: %(default)s)')
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
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments, output):
    """Print the classes of each image as soon as they are known, or one JSON object at the end."""
    exported = Exported(arguments.prefix)
    spec = _input_spec(arguments, exported)
    classifier = _Classifier(exported, arguments.epoch, spec)
    names = _class_names(arguments, exported, classifier.classes)
    predictions = []
    for image in arguments.images:
        probabilities = classifier(image)
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

    options = {
        field: value
        for field, value in (
            ('channels', arguments.channels),
            ('size', arguments.input_size),
            ('mean', arguments.mean),
            ('std', arguments.std),
        )
        if value is not None
    }
    if arguments.resize is not None:
        options['resize'] = arguments.resize or None
    elif arguments.input_size is not None:
        options['resize'] = round(arguments.input_size * 256 / 224)
    written = exported.input_spec()
    if written is None and not options:
        print(f'note: there is no {exported.description_file}; images are prepared as for ImageNet', file=sys.stderr)
    return dataclasses.replace(written or InputSpec(), **options)


def _class_names(arguments, exported, classes):
    """One name a class, or None where nobody gave names."""
    if arguments.classes_file:
        source = arguments.classes_file
        with open(source, encoding='utf-8', errors='replace') as file:
            names = [line.strip() for line in file.read().strip().splitlines()]
    else:
        source = exported.description_file
        names = exported.description().get('class_names')
        if not isinstance(names, (list, type(None))):
            raise UserError(f'{source}: class_names must be a list of names or null, not {names!r}')
    if names is not None and len(names) != classes:
        raise UserError(f'{source} names {len(names)} classes, but the network has {classes}')
    return names


class _Classifier:
    """An exported network that maps an image file to the probabilities of its classes (float64, sum 1)."""

    def __init__(self, exported, epoch, spec):
        import mxnet as mx

        from ..deploy.container import read_arrays
        from ..graph import Graph, load_symbol

        self.exported, self.spec = exported, spec
        symbol = load_symbol(exported.symbol_file)
        file = exported.parameter_file(epoch)
        stored = {name: array.shape for name, array in read_arrays(file).items()}
        needed = set(symbol.list_inputs()) - set(stored)
        if len(needed) != 1:
            raise UserError(
                f'{file} must hold all inputs of {exported.symbol_file} but one, the image; '
                f'{"it lacks " + ", ".join(sorted(needed)[:4]) if needed else "none is left"}'
            )
        self.input = needed.pop()
        graph = Graph.read(symbol, {self.input: (1, *spec.shape)})
        _require_match(graph, stored, f'{file} does not fit {exported.symbol_file} and an input of shape {spec.shape}')
        shapes = [node.shape for node in graph.outputs]
        if len(shapes) != 1 or len(shapes[0]) < 2 or max(shapes[0]) != math.prod(shapes[0]):
            raise UserError(
                f'{exported.symbol_file} is no classifier: its outputs have the shapes {", ".join(map(str, shapes))}, not (1, classes)'
            )
        self.classes = math.prod(shapes[0])
        self.gives_probabilities = graph.outputs[0].operator in ('softmax', 'SoftmaxOutput', 'SoftmaxActivation')
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input: it is what it is given, float32
            self.network = mx.gluon.SymbolBlock.imports(exported.symbol_file, [self.input], file)

    def __call__(self, image):
        import mxnet as mx
        import numpy as np

        array = self.spec.load(image)
        try:
            values = self.network(array).asnumpy().astype(np.float64).ravel()
        except mx.MXNetError as error:
            raise UserError(
                f'{self.exported.prefix} does not run on an input of shape {array.shape}: {last_line(error)}'
            ) from error
        if not np.isfinite(values).all():
            raise UserError(
                f'{self.exported.prefix} gives values that are not finite for {image}: its parameters are damaged or training diverged'
            )
        if self.gives_probabilities:
            return values
        exponentials = np.exp(values - values.max())
        return exponentials / exponentials.sum()


def _require_match(graph, stored, complaint):
    expected = {node.name: node.shape for node in graph.parameters + graph.statistics}
    for name, shape in stored.items():
        if expected.get(name) != shape:
            raise UserError(
                f'{complaint}: {name} is {shape} there, ' + (f'but {expected[name]} here' if name in expected else 'but unknown here')
            )
