"""Accuracy, size and time of packed networks in float32, in half precision and with layers of 8-bit integers.

Trains small networks of six families on digits and on glyphs, and the network of the demo, packs each in all forms, and compares the
predictions on the test images, the same for all forms of a network. Ranges of 8-bit numbers come from 256 training images. The files lie in
out/int8-accuracy; trainings that are finished are not repeated.

- An interval of an accuracy is Wilson's, one of a difference comes from a bootstrap over the images, both of 95 %.
- ``p`` is from the exact McNemar test: the probability of so unequal numbers of images that only one of both forms classifies correctly,
  if both forms are equally accurate.
- Times are processor time of single images in one thread, in turns; a ratio is the median over the turns.

Run: ``python benchmarks/int8_accuracy.py``, about an hour on two cores. It writes benchmarks/int8_accuracy.json, from which
``tools/site_plots.py`` draws docs/figures/int8.svg, and prints the tables in benchmarks/README.md.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402  the path comes first
from scipy import stats  # noqa: E402

import bmx_melius as bmx  # noqa: E402
from benchmarks.paired import PER_TURN, changed_hits, timed  # noqa: E402
from bmx_melius.data.glyphs import open_glyphs  # noqa: E402
from bmx_melius.data.small_images import open_digits  # noqa: E402
from bmx_melius.deployment.convert import calibration  # noqa: E402
from bmx_melius.files.exported import Exported  # noqa: E402
from bmx_melius.files.io import write_json  # noqa: E402
from bmx_melius.process import processor  # noqa: E402
from model_zoo import quicknet  # noqa: E402

FOLDER = ROOT / 'out' / 'int8-accuracy'
RESULTS = ROOT / 'benchmarks' / 'int8_accuracy.json'
OPEN = {'digits': open_digits, 'glyphs': open_glyphs}
FLAGS = {'digits': {'num-epochs': 12, 'batch-size': 32}, 'glyphs': {'num-epochs': 5, 'batch-size': 64, 'lr': 0.01}}
SMALL = {'growth_rate': 16, 'init_features': 16}
MELIUSNET = {'block_numbers': [3] * 4, 'transitions': [48, 48, 64], **SMALL}
RESNET = {'init_features': 16}


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of the study: model, options of `get_model`, options that differ on glyphs, datasets, and other flags."""

    model: str
    options: dict
    on_glyphs: dict = dataclasses.field(default_factory=lambda: {'initial_layers': 'grouped_stem'})
    datasets: 'tuple[str, ...]' = ('digits', 'glyphs')
    flags: dict = dataclasses.field(default_factory=dict)

    def arguments(self, dataset):
        """Return the arguments of the training program."""
        options = {**self.options, **(self.on_glyphs if dataset == 'glyphs' else {})}
        flags = {'model': self.model, 'dataset': dataset, 'seed': 1, **FLAGS[dataset], **self.flags}
        if options:
            flags['model-options'] = json.dumps(options)
        return [part for name, value in flags.items() for part in (f'--{name}', str(value))]


def small_quicknet(classes, initial_layers='thumbnail'):
    """Return a QuickNet with two blocks in a stage and a quarter of the width."""
    options = quicknet.QuickNetOptions(init_features=16, initial_layers=initial_layers)
    return quicknet.QuickNet(quicknet.QuickNetArchitecture((2, 2, 2, 2), (16, 32, 64, 128)), options, classes=classes)


NETWORKS = {
    'MeliusNet22, demo': Network('meliusnet22', {}, datasets=('digits',), flags={'num-epochs': 10}),  # as in examples/demo.py
    'MeliusNet': Network('meliusnet_flex', MELIUSNET),
    'BinaryDenseNet': Network('binary_densenet_flex', {'block_numbers': [5] * 4, 'transitions': [32, 32, 48], **SMALL}),
    'ResNetE18': Network('resnet_e18', RESNET),
    'Bi-Real Net 18': Network('birealnet18', RESNET),
    'ReActNet 18': Network('reactnet18', RESNET),
    'QuickNet': Network('benchmarks.int8_accuracy:small_quicknet', {}, {'initial_layers': 'quicknet'}),
}
CALIBRATION = 256
MSE, ONE_SCALE = 'int8 mse', 'int8 mse, one scale'
QUANTIZED = (MSE, 'int8 percentile', 'int8 minmax')
FORMS = {  # name -> arguments of `convert`
    'float': {},
    'half': {'half': True},
    **{name: {'ranges': name.split()[1]} for name in QUANTIZED},
    ONE_SCALE: {'ranges': 'mse'},  # for all channels of a value, without `equalization`
}
DRAWS = 10000  # of a bootstrap


def main():
    """Train, pack, evaluate and time all networks; write the results and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tables', action='store_true', help='only print the tables of the stored results')
    if parser.parse_args().tables:
        print(tables(json.loads(RESULTS.read_text(encoding='utf-8'))))
        return
    predictions, rows = {}, []
    for dataset in OPEN:
        for name in [name for name, network in NETWORKS.items() if dataset in network.datasets]:
            prefix = trained(name, dataset)
            row, predictions[dataset, name] = measured(name, dataset, prefix)
            rows.append(row)
            print(f'{dataset}, {name}: {row["forms"]["float"]["accuracy"]:.2%}', file=sys.stderr, flush=True)
    pooled = {dataset: pool([found for (of, _), found in predictions.items() if of == dataset]) for dataset in OPEN}
    results = {'processor': processor(), 'calibration_images': CALIBRATION, 'networks': rows, 'all_networks': pooled}
    write_json(RESULTS, results)
    print(tables(results))


def trained(name, dataset):
    """Return the prefix of the exported network, which is trained unless it exists."""
    folder = FOLDER / dataset / name.lower().replace(' ', '-').replace(',', '')
    prefix = Exported.in_run(folder, NETWORKS[name].model).prefix
    if not os.path.exists(Exported(prefix).parameter_file(0)):
        arguments = ['--resume'] if (folder / 'checkpoint.json').exists() else NETWORKS[name].arguments(dataset)
        subprocess.run(
            [sys.executable, ROOT / 'train_imagenet.py', *arguments, '--save-dir', folder], cwd=ROOT, check=True, stdout=sys.stderr
        )
    return prefix


@functools.lru_cache(maxsize=None)
def splits(dataset):
    """Return the `Splits` of a dataset, which are opened once."""
    return OPEN[dataset]()


def inputs(prefix, dataset, part, most=None):
    """Return normalized images of a part of a dataset, at most `most` of them at equal distances, and their labels."""
    spec, images = Exported(prefix).description().input_spec(), getattr(splits(dataset), part)
    chosen = np.linspace(0, len(images) - 1, min(most or len(images), len(images))).astype(int)
    arrays, labels = zip(*((spec.normalize(spec.crop(image)).asnumpy(), label) for image, label in (images[int(i)] for i in chosen)))
    return np.stack(arrays), np.array(labels)


def measured(name, dataset, prefix):
    """Return the figures of a network in all forms, and a dict from each form to which images it classifies correctly."""
    training_images, _ = inputs(prefix, dataset, 'train', CALIBRATION)
    images, labels = inputs(prefix, dataset, 'test')
    source = Exported(prefix)
    forms, classes, sessions = {}, {}, {}
    for form, options in FORMS.items():
        packed = f'{prefix}-{form.replace(",", "").replace(" ", "-")}'
        arguments = {**options, 'calibration': training_images} if 'ranges' in options else options
        with one_scale() if form == ONE_SCALE else contextlib.nullcontext():
            report = bmx.convert(source.symbol_file, source.parameter_file(0), packed, (1, *images.shape[1:]), **arguments)
        sessions[form] = bmx.Session(packed, threads=1)
        classes[form] = np.concatenate([sessions[form](batch).argmax(axis=1) for batch in np.array_split(images, len(images) // 64 + 1)])
        forms[form] = {'bytes': report.size_after}
        if report.quantization:
            forms[form].update(signs=float(np.mean(list(report.quantization.signs.values()))), changes=report.quantization.changes)
    correct = {form: found == labels for form, found in classes.items()}
    for form, (milliseconds, ratio) in timed({form: (session, images[:PER_TURN]) for form, session in sessions.items()}).items():
        forms[form].update(
            milliseconds=milliseconds,
            time_ratio=ratio,
            accuracy=float(correct[form].mean()),
            interval=interval_of(correct[form]),
            other_class=float((classes[form] != classes['float']).mean()),
            **compared(correct['float'], correct[form]),
        )
    return {'network': name, 'dataset': dataset, 'images': len(labels), 'forms': forms}, correct


def one_scale():
    """Return a context in which all channels of a value have one scale."""
    return mock.patch.object(calibration, 'channel_factors', lambda statistics, layers: np.ones(len(statistics.power)))


# --- statistics -------------------------------------------------------------------------------------------------------------------------


def interval_of(correct):
    """Return the 95 % interval of an accuracy (Wilson 1927), of an array of whether each image is classified correctly."""
    return list(stats.binomtest(int(correct.sum()), len(correct)).proportion_ci(method='wilson'))


def compared(before, after):
    """Return the difference of two forms on the same images: numbers of images, difference in points, its interval, and p."""
    lost, won, p = changed_hits(before, after)
    return {'lost': lost, 'won': won, **difference(after.astype(float) - before), 'p': p}


def difference(of_images):
    """Return the mean of differences in points, with its 95 % interval: percentiles of a bootstrap over the images."""
    random, n = np.random.RandomState(0), len(of_images)
    values, counts = np.unique(of_images, return_counts=True)
    means = 100 * (random.multinomial(n, counts / n, DRAWS) @ values) / n
    return {'points': float(100 * of_images.mean()), 'points_interval': [float(x) for x in np.percentile(means, (2.5, 97.5))]}


def pool(networks):
    """Return for each form the mean difference to float over the networks of a dataset, which have the same test images."""
    return {form: difference(np.mean([found[form].astype(float) - found['float'] for found in networks], axis=0)) for form in FORMS}


# --- tables -----------------------------------------------------------------------------------------------------------------------------


def tables(results):
    """Return the tables in Markdown."""
    others = ['half', *QUANTIZED]
    accuracy = [header('', 'images', 'float, %', *(f'{form}, points' for form in others), 'lost, won', 'p')]
    changes = [
        header('', 'other class: half', MSE, ONE_SCALE, f'signs: {MSE}', ONE_SCALE, 'kB: float', 'half', 'int8', 'time: half', 'int8')
    ]
    for row in results['networks']:
        forms = row['forms']
        low, high = (100 * limit for limit in forms['float']['interval'])
        float_accuracy = f'{100 * forms["float"]["accuracy"]:.2f} ({low:.1f} to {high:.1f})'
        test = f'{forms[MSE]["lost"]}, {forms[MSE]["won"]}', f'{forms[MSE]["p"]:.2g}'
        accuracy.append(line([row['network'], row['dataset'], float_accuracy, *(points(forms[form]) for form in others), *test]))
        cells = [f'{row["network"]}, {row["dataset"]}', *(f'{100 * forms[form]["other_class"]:.1f} %' for form in ('half', MSE, ONE_SCALE))]
        cells += [f'{100 * forms[form]["signs"]:.2f} %' for form in (MSE, ONE_SCALE)]
        cells += [f'{forms[form]["bytes"] / 1e3:.1f}' for form in ('float', 'half', MSE)]
        changes.append(line([*cells, *(f'{forms[form]["time_ratio"]:.2f}' for form in ('half', MSE))]))
    for dataset, found in results['all_networks'].items():
        accuracy.append(line(['**all networks**', dataset, '', *(points(found[form]) for form in others), '', '']))
    start = f'{results["processor"]}; {results["calibration_images"]} training images for calibration. Lost, won and p are those of {MSE}.'
    return '\n'.join([start, '', *accuracy, '', *changes])


def header(*cells):
    """Return the first two lines of a table."""
    return f'{line(cells)}\n|{"-|" * len(cells)}'


def line(cells):
    """Return a line of a table."""
    return f'| {" | ".join(cells)} |'


def points(found):
    """Return a difference with its interval as text."""
    low, high = found['points_interval']
    return f'{found["points"]:+.2f} ({low:+.2f} to {high:+.2f})'


if __name__ == '__main__':
    main()
