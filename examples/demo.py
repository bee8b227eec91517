"""Demo: predict with a trained binary network, then train one on handwritten digits, export it, pack it for XNOR and popcount, and time it.

`make demo` runs this file. It works like a user: it calls train_imagenet.py and the command line, and uses the files that they write.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import time

import cv2
import matplotlib
import mxnet as mx
import numpy as np

import bmx_melius
from bmx_melius.bench.comparison import compare
from bmx_melius.bench.networks import export
from bmx_melius.bench.peers import mxnet_float, mxnet_packed, session
from bmx_melius.bench.rows import Row
from bmx_melius.data.small_images import open_digits
from bmx_melius.vision.preprocessing import InputSpec
from model_zoo import get_model

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402  the backend comes first

MODEL = 'meliusnet22'
# The digits give 16 updates of 64 images in an epoch: twice as many updates of half the size reach the required accuracy with a margin.
FLAGS = ['--model', MODEL, '--dataset', 'digits', '--seed', '1', '--batch-size', '32']
REQUIRED = 0.95  # top-1 accuracy
RUNS, ROUNDS = 200, 20  # for the timing of each form of the network

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parent / 'out' / 'demo'
RUN = FOLDER / 'run'
PREFIX = RUN / MODEL
PACKED = FOLDER / 'packed'
FULL_PRECISION = FOLDER / 'full-precision'  # the same architecture without quantization

# Forms of the network that are timed.
FLOAT, EXPORTED = 'full precision, MXNet', 'binary as exported, MXNet'
IN_MXNET, IN_SESSION = 'packed binary, MXNet', 'packed binary, Session'


def main():
    started = time.time()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)

    headline('Predicting with a trained binary network of 110 KB')
    run('-m', 'bmx_melius', 'predict', 'meliusnet_fashion', shorten(HERE / 'ankle_boot.png'))

    headline('Training a binary network')
    run(HERE.parent / 'train_imagenet.py', *FLAGS, '--save-dir', RUN)
    description = json.loads(pathlib.Path(f'{PREFIX}-summary.json').read_text())
    spec = InputSpec.from_json(description['input'])

    headline('Counting operations and size')
    show_costs(description, spec)

    headline('Loading the exported files in a new process, with MXNet only')
    images, labels = zip(*open_digits().test)
    inputs = np.stack([spec.normalize(spec.crop(image)).asnumpy() for image in images])
    np.save(FOLDER / 'inputs.npy', inputs)
    run(HERE / 'classify_with_stock_mxnet.py', PREFIX, FOLDER / 'inputs.npy', FOLDER / 'outputs.npy')
    logits = np.load(FOLDER / 'outputs.npy')
    predictions = logits.argmax(axis=1)
    trained = logits_as_trained(description, inputs)
    if not np.array_equal(predictions, trained.argmax(axis=1)):
        sys.exit('the predictions of the exported network differ from the trained network')
    print(
        f'{len(labels)} test digits, which training did not use: the same predictions as the trained network, '
        f'logits differ by {np.abs(logits - trained).max():.1g} at most'
    )

    headline('Packing the network: xnor and popcount instead of multiplications')
    run('-m', 'bmx_melius', 'convert', shorten(PREFIX), shorten(PACKED))
    run('-m', 'bmx_melius', 'evaluate', shorten(PREFIX), 'digits', '--compare', shorten(PACKED))
    packed = bmx_melius.Session(PACKED)(inputs).argmax(axis=1)
    accuracy, packed_accuracy = np.mean(predictions == labels), np.mean(packed == labels)

    headline('Timing one digit, in one thread')
    times = time_forms(description['model'], (1, *spec.shape))
    for form, seconds in times.items():
        ratio = '' if form == FLOAT else f'{times[FLOAT] / seconds:10.1f} times as fast'
        print(f'{form:<28} {1e3 * seconds:8.3f} ms{ratio}')

    cv2.imwrite(str(FOLDER / 'digit.png'), images[0].asnumpy())
    history = json.loads((RUN / 'checkpoint.json').read_text())['progress']['history']
    draw(images, labels, packed, history, times, FOLDER / 'demo.png')
    command = shorten(pathlib.Path(sys.executable).parent / 'bmx-melius')
    print(
        f'\npicture      {shorten(FOLDER / "demo.png")}\n'
        f'now try      {command} predict {shorten(PACKED)} {shorten(FOLDER / "digit.png")}\n'
        f'             {command} evaluate {shorten(PACKED)} digits --per-class\n'
        f'             {command} summary {shorten(PREFIX)}-symbol.json --by kind\n'
        f'             {command} bench meliusnet22 --compare mxnet\n'
        f'time         {time.time() - started:.0f} s\n'
    )
    print(f'top-1 {percent(packed_accuracy)}')
    if min(accuracy, packed_accuracy) < REQUIRED:
        sys.exit(f'that is less than {REQUIRED:.0%}')


def headline(text):
    print(f'\n--- {text} ---\n', flush=True)


def percent(fraction):
    return f'{100 * fraction:.1f} %'


def run(*command):
    """Run a Python program in a separate process; exit with its status if it fails."""
    status = subprocess.run([sys.executable, *command]).returncode
    if status:
        sys.exit(status)


def show_costs(description, spec):
    """Print OPs and size of the network and of the same network without quantization."""
    shape = (1, *spec.shape)
    binary = bmx_melius.summary(f'{PREFIX}-symbol.json', input_shape=shape)
    floating = bmx_melius.summary(get_model(**description['model'], bits=32), input_shape=shape)
    for name, network in ((MODEL, binary), ('in float32', floating)):
        print(f'{name:<12} {network.ops / 1e6:6.2f} million OPs   {network.size_bytes / 2**20:6.2f} MB')
    print(f'{"":<12} {floating.ops / binary.ops:6.1f} times fewer      {floating.size_bytes / binary.size_bytes:5.1f} times smaller')


def logits_as_trained(description, inputs):
    """Return the logits of the trained network, loaded from the checkpoint of its best epoch."""
    net = get_model(**description['model'])
    net.load_parameters(str(RUN / f'epoch-{description["metrics"]["epoch"]:04d}.params'))
    return net(mx.nd.array(inputs)).asnumpy()


def time_forms(model, shape):
    """Return the median time of one image in seconds for each form; forms run alternately in separate processes with one thread."""
    export(get_model(**model, bits=32, norm_kwargs={'momentum': 0.0}), str(FULL_PRECISION), shape)
    forms = {
        FLOAT: (mxnet_float, {'prefix': str(FULL_PRECISION), 'form': 'folded'}),  # the fastest form in MXNet: fused operators
        EXPORTED: (mxnet_float, {'prefix': str(PREFIX), 'form': 'exported'}),
        IN_MXNET: (mxnet_packed, {'prefix': str(PACKED)}),
        IN_SESSION: (session, {'prefix': str(PACKED)}),
    }
    rows = [Row(form, form, 'demo', peer, shape, 1, arguments) for form, (peer, arguments) in forms.items()]
    results = compare(rows, RUNS, ROUNDS, progress=lambda items, _: items)
    for form, result in results.items():
        if 'error' in result:
            sys.exit(f'{form}: {result["error"]}')
    return {form: result['seconds'] for form, result in results.items()}


def draw(images, labels, predictions, history, times, path):
    """Plot the accuracy over the epochs, the times, and test digits with their predictions, wrong predictions first."""
    figure = plt.figure(figsize=(12, 5.6), constrained_layout=True)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.2))
    axes, bars = left.subplots(2, 1, gridspec_kw={'height_ratios': (2, 1)})
    epochs = [row['epoch'] for row in history]
    for key, label in (('top1', 'validation digits'), ('train_top1', 'training digits, augmented')):
        axes.plot(epochs, [100 * row[key] for row in history], marker='o', label=label)
    axes.axhline(100 * REQUIRED, color='gray', linestyle=':', linewidth=1)
    axes.set(xlabel='epoch', ylabel='top-1 accuracy / %', ylim=(0, 101), title=f'{MODEL} learns digits', xticks=epochs)
    axes.grid(alpha=0.3)
    axes.legend(loc='lower right')
    draw_times(bars, times)
    wrong = np.array(predictions) != np.array(labels)
    shown = np.argsort(~wrong, kind='stable')[:60]
    right.suptitle(f'{len(labels)} test digits: {wrong.sum()} mistakes (red, true digit in brackets)')
    for index, cell in zip(shown, right.subplots(6, 10).flat):
        cell.imshow(images[index].asnumpy()[..., 0], cmap='gray_r')
        cell.set_title(
            f'{predictions[index]} ({labels[index]})' if wrong[index] else str(predictions[index]),
            fontsize=9,
            pad=2,
            color='tab:red' if wrong[index] else 'black',
        )
        cell.axis('off')
    figure.savefig(path, dpi=110)


def draw_times(axes, times):
    """Draw a bar for the full-precision counterpart and for each way to run the packed network."""
    milliseconds = {form: 1e3 * times[form] for form in (FLOAT, IN_MXNET, IN_SESSION)}
    bars = axes.barh(
        [form.replace(', ', '\n') for form in milliseconds], list(milliseconds.values()), color=['gray', 'tab:green', 'tab:green']
    )
    ratios = [''] + [f': {times[FLOAT] / times[form]:.0f} times as fast' for form in (IN_MXNET, IN_SESSION)]
    axes.bar_label(bars, [f'{time:.2f} ms{ratio}' for time, ratio in zip(milliseconds.values(), ratios)], padding=3)
    axes.set(xlim=(0, 1.25 * max(milliseconds.values())), xticks=[])
    axes.set_title('one digit, one thread', fontsize=10)
    axes.invert_yaxis()
    axes.spines[['top', 'right', 'bottom']].set_visible(False)


def shorten(path):
    """Return `path` relative to the working directory if it is inside it."""
    here = pathlib.Path.cwd()
    return path.relative_to(here) if here in path.parents else path


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit('stopped')
