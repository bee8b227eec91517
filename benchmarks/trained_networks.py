"""Evaluate the networks that ship with the project on the images of their cards, in all forms and beside 8 bits of ONNX Runtime.

    python benchmarks/trained_networks.py

downloads Fashion-MNIST (Debian's package dataset-fashion-mnist, 31 MB, unpacked into out/datasets) unless --data-dir has its four files,
and ends with an error if a network classifies another number of test images correctly than its card says. ``--forms`` also packs each
network from its weights for training in half precision and with 8-bit layers, and the float networks by ONNX Runtime with 8 bits, and
writes benchmarks/trained_networks.json, from which ``tools/site_plots.py`` draws docs/figures/trained.svg:

- Ranges of 8-bit numbers come from 256 training images.
- ``p`` is from the exact McNemar test against the form that ships: the probability of so unequal numbers of images that only one of both
  classifies correctly, if both are equally accurate.
- Times are processor time of single images in one thread, all networks and forms in turns: the least of each.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import mxnet as mx
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools')]

from commands import run_main  # noqa: E402  the path comes first
from debian_packages import unpack  # noqa: E402
from int8_accuracy import compared, interval_of  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from benchmarks.paired import PER_TURN, timed  # noqa: E402
from bmx_melius.data.opening import open_images  # noqa: E402
from bmx_melius.deployment.onnx.export import to_onnx  # noqa: E402
from bmx_melius.deployment.runtime.packed_files import read_packed  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.files.exported import Exported, description_fields  # noqa: E402
from bmx_melius.files.io import write_json  # noqa: E402
from bmx_melius.files.stored_networks import read_table  # noqa: E402
from bmx_melius.process import processor  # noqa: E402
from bmx_melius.vision.preprocessing import InputSpec  # noqa: E402
from model_zoo import get_model  # noqa: E402
from model_zoo.shipped import FOLDER  # noqa: E402

DATASET, PACKAGE, INSTALLED = 'fashion-mnist', 'dataset-fashion-mnist', pathlib.Path('usr/share/datasets/fashion-mnist')
RESULTS = ROOT / 'benchmarks' / 'trained_networks.json'
CALIBRATION = 256


def main():
    """Evaluate all networks, print a line for each, and fail if a card is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data-dir', type=pathlib.Path, help='folder with the four files of Fashion-MNIST')
    parser.add_argument('--forms', action='store_true', help='also measure half precision and 8 bits, and write the results')
    arguments = parser.parse_args()
    networks, folder = read_table(FOLDER), arguments.data_dir or downloaded()
    test, rows, wrong = Images(folder, networks[0]), [], []
    for network in networks:
        correct = test.correct(network, bmx.Session(network.packed()))
        print(f'{network.name}: top-1 {100 * correct.mean():.2f} % ({correct.sum():,} of {len(correct):,} images)', flush=True)
        if correct.sum() != network.correct:
            wrong.append(f'{network.name} {network.correct:,}')
        if arguments.forms:
            rows.append((network, correct))
    if wrong:
        raise UserError(f'other numbers are on the cards: {"; ".join(wrong)}')
    if rows:
        with tempfile.TemporaryDirectory() as scratch:
            results = {
                'processor': processor(),
                'networks': measured(rows, test, Images(folder, networks[0], True, CALIBRATION), pathlib.Path(scratch)),
            }
        write_json(RESULTS, results)
        print(table(results))


def downloaded():
    """Return the folder of Fashion-MNIST: of the installed package, or of the package that is unpacked into out/datasets."""
    if (pathlib.Path('/') / INSTALLED).is_dir():
        return pathlib.Path('/') / INSTALLED
    architecture = subprocess.run(['dpkg', '--print-architecture'], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return unpack([PACKAGE], architecture, ROOT / 'out' / 'datasets') / INSTALLED


class Images:
    """Images of Fashion-MNIST with their labels, at most `most` of them at equal distances, for networks of the table.

    Attributes
    ----------
    pixels : numpy.ndarray
        (N, height, width, channels) uint8, as all networks want them.
    labels : numpy.ndarray
    """

    def __init__(self, folder, network, training=False, most=None):
        spec = InputSpec.from_json(network.input)
        dataset = open_images(DATASET, spec, 1, training=training, data_dir=str(folder)).dataset
        chosen = np.linspace(0, len(dataset) - 1, min(most or len(dataset), len(dataset))).astype(int)
        crops, labels = zip(*((spec.crop(image).asnumpy(), label) for image, label in (dataset[int(i)] for i in chosen)))
        self.pixels, self.labels = np.stack(crops), np.array(labels)

    def normalized(self, network):
        """Return the images as inputs of a network, (N, channels, height, width) float32."""
        return InputSpec.from_json(network.input).normalized(self.pixels.transpose(0, 3, 1, 2))

    def correct(self, network, session):
        """Return for each image whether a network, a function of a batch, classifies it correctly."""
        x = self.normalized(network)
        return np.concatenate([session(x[at : at + 100]).argmax(axis=1) for at in range(0, len(x), 100)]) == self.labels


class OnnxSession:
    """A network in ONNX Runtime, with one thread."""

    def __init__(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
        self.name = self.session.get_inputs()[0].name

    def __call__(self, images):
        return self.session.run(None, {self.name: images})[0]


# --- forms ------------------------------------------------------------------------------------------------------------------------------


def measured(rows, test, training, folder):
    """Return for each network its facts and its comparison with the best one, and for each form bytes, accuracy, comparison and time."""
    networks, sessions = [], {}
    best = max((correct for _, correct in rows), key=np.sum)
    for network, expected in rows:
        forms = {}
        for form, (session, size) in forms_of(network, training.normalized(network), folder).items():
            correct = test.correct(network, session)
            counted = {'correct': int(correct.sum()), 'images': len(correct), 'interval': interval_of(correct)}
            forms[form] = {'bytes': size, **counted, **compared(expected, correct)}
            sessions[network.name, form] = session, test.normalized(network)[:PER_TURN]
        facts = {'name': network.name, 'model': network.model['name'], 'ops': network.counts['ops']}
        networks.append({**facts, 'to_the_best': compared(best, expected), 'forms': forms})
    for (name, form), (milliseconds, _) in timed(sessions).items():
        next(row for row in networks if row['name'] == name)['forms'][form]['milliseconds'] = milliseconds
    return networks


def forms_of(network, calibration, folder):
    """Return the forms of a network, name -> (function of a batch, bytes); the float one is the one that ships."""
    exported, shape = export(network, folder), (1, *calibration.shape[1:])
    files, shipped = (exported.symbol_file, exported.parameter_file(0)), network.packed()
    forms = {'float': (bmx.Session(shipped, threads=1), network.files[f'{network.name}-0000.params']['bytes'])}
    for form, options in (('half', {'half': True}), ('int8', {'calibration': calibration})):
        prefix = f'{exported.prefix}-{form}'
        report = bmx.convert(*files, prefix, shape, **options)
        forms[form] = bmx.Session(prefix, threads=1), report.size_after
    if not network.counts['binary_params']:
        float_file, int8_file = folder / f'{network.name}.onnx', folder / f'{network.name}-int8.onnx'
        program, _, input_names, order, _ = read_packed(shipped)
        float_file.write_bytes(to_onnx(program, input_names, order).SerializeToString())
        quantize(float_file, int8_file, calibration)
        for form, path in (('float, ONNX Runtime', float_file), ('int8, ONNX Runtime', int8_file)):
            forms[form] = OnnxSession(str(path)), path.stat().st_size
    return forms


def export(network, folder):
    """Export a network from its weights for training, with its description, and return the `Exported` files."""
    net, spec = get_model(network.name, pretrained=True), InputSpec.from_json(network.input)
    net.hybridize()
    net(mx.nd.zeros((1, *spec.shape)))
    exported = Exported(str(folder / network.name))
    exported.write(net, description_fields(network.model, spec, network.counts, network.class_names))
    return exported


def quantize(source, target, calibration):
    """Write a model of ONNX with 8-bit weights and inputs, with ONNX Runtime's ranges from images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.images = iter(calibration)

        def get_next(self):
            image = next(self.images, None)
            return None if image is None else {'data': image[None]}

    kinds = {'activation_type': QuantType.QUInt8, 'weight_type': QuantType.QInt8}
    quantize_static(str(source), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)


def table(results):
    """Return the table in Markdown."""
    lines = [
        f'{results["processor"]}; {CALIBRATION} training images for calibration.\n',
        '| network | form | KB | top-1 % | lost, won | p | ms |',
        '|-|-|-|-|-|-|-|',
    ]
    for network in results['networks']:
        for form, found in network['forms'].items():
            accuracy = 100 * found['correct'] / found['images']
            lines.append(
                f'| `{network["name"]}` | {form} | {found["bytes"] / 1e3:.0f} | {accuracy:.2f} | {found["lost"]}, {found["won"]} | '
                f'{found["p"]:.2g} | {found["milliseconds"]:.3f} |'
            )
    lines.append('')
    for network in results['networks']:
        found = network['to_the_best']
        lines.append(f'{network["name"]} to the best network: {found["points"]:+.2f} points, p = {found["p"]:.2g}')
    return '\n'.join(lines)


if __name__ == '__main__':
    run_main(main)
