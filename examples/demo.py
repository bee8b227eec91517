"""From nothing to a binary network that classifies handwritten digits: train, count, export, load in a new process, classify, draw.

`make demo` runs this file. It does what a user would do: it calls train_imagenet.py and works on with the files that come out.
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
from bmx_melius.preprocessing import InputSpec
from bmx_melius.training.digits import open_digits
from model_zoo import get_model

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402  the backend comes first

MODEL = 'meliusnet22'
FLAGS = ['--model', MODEL, '--dataset', 'digits', '--seed', '1']
REQUIRED = .95  # top-1 accuracy

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parent / 'out' / 'demo'
RUN = FOLDER / 'run'
PREFIX = RUN / MODEL


def main():
    started = time.time()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)

    headline('Training a binary network')
    run(HERE.parent / 'train_imagenet.py', *FLAGS, '--save-dir', RUN)
    description = json.loads(pathlib.Path(f'{PREFIX}-summary.json').read_text())
    spec = InputSpec.from_json(description['input'])

    headline('What it costs')
    show_costs(description, spec)

    headline('Loading the exported files in a new process, with MXNet alone')
    _, held_back = open_digits()
    images, labels = zip(*held_back)
    inputs = np.stack([spec.normalize(spec.crop(image)).asnumpy() for image in images])
    np.save(FOLDER / 'inputs.npy', inputs)
    run(HERE / 'classify_with_stock_mxnet.py', PREFIX, FOLDER / 'inputs.npy', FOLDER / 'outputs.npy')
    logits = np.load(FOLDER / 'outputs.npy')
    predictions = logits.argmax(axis=1)
    trained = logits_as_trained(description, inputs)
    if not np.array_equal(predictions, trained.argmax(axis=1)):
        sys.exit('the exported network does not predict what the trained one does')
    print(f'{len(labels)} digits that were held back in training: the same predictions as the trained network, '
          f'logits differ by {np.abs(logits - trained).max():.1g} at most')

    cv2.imwrite(str(FOLDER / 'digit.png'), images[0].asnumpy())
    history = json.loads((RUN / 'checkpoint.json').read_text())['progress']['history']
    draw(images, labels, predictions, history, FOLDER / 'demo.png')
    accuracy = np.mean(predictions == labels)
    command = shorten(pathlib.Path(sys.executable).parent / 'bmx-melius')
    print(f'picture      {shorten(FOLDER / "demo.png")}\n'
          f'now try      {command} predict {shorten(PREFIX)} {shorten(FOLDER / "digit.png")}\n'
          f'             {command} summary {shorten(PREFIX)}-symbol.json --by kind\n'
          f'time         {time.time() - started:.0f} s\n')
    print(f'top-1 {accuracy:.1%}'.replace('%', ' %'))
    if accuracy < REQUIRED:
        sys.exit(f'that is less than {REQUIRED:.0%}')


def headline(text):
    print(f'\n--- {text} ---\n', flush=True)


def run(*command):
    """Run a Python program in a process of its own; end like it does where it fails."""
    status = subprocess.run([sys.executable, *command]).returncode
    if status:
        sys.exit(status)


def show_costs(description, spec):
    """OPs and size, beside those of the same network without quantization."""
    shape = (1, *spec.shape)
    binary = bmx_melius.summary(f'{PREFIX}-symbol.json', input_shape=shape)
    twin = bmx_melius.summary(get_model(**description['model'], bits=32), input_shape=shape)
    for name, network in ((MODEL, binary), ('in float32', twin)):
        print(f'{name:<12} {network.ops / 1e6:6.2f} million OPs   {network.size_bytes / 2 ** 20:6.2f} MB')
    print(f'{"":<12} {twin.ops / binary.ops:6.1f} times fewer      {twin.size_bytes / binary.size_bytes:5.1f} times smaller')


def logits_as_trained(description, inputs):
    """The logits of the network as the training program left it, from the checkpoint of its best epoch."""
    net = get_model(**description['model'])
    net.load_parameters(str(RUN / f'epoch-{description["metrics"]["epoch"]:04d}.params'))
    return net(mx.nd.array(inputs)).asnumpy()


def draw(images, labels, predictions, history, path):
    """Accuracy over the epochs, and held-back digits with what the network takes them for; all it gets wrong come first."""
    figure = plt.figure(figsize=(12, 5), constrained_layout=True)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.2))
    axes = left.subplots()
    epochs = [row['epoch'] for row in history]
    for key, label in (('top1', 'held-back digits'), ('train_top1', 'training digits, augmented')):
        axes.plot(epochs, [100 * row[key] for row in history], marker='o', label=label)
    axes.axhline(100 * REQUIRED, color='gray', linestyle=':', linewidth=1)
    axes.set(xlabel='epoch', ylabel='top-1 accuracy / %', ylim=(0, 101), title=f'{MODEL} learns digits', xticks=epochs)
    axes.grid(alpha=.3)
    axes.legend(loc='lower right')
    wrong = np.array(predictions) != np.array(labels)
    shown = np.argsort(~wrong, kind='stable')[:60]
    right.suptitle(f'{len(labels)} held-back digits: {wrong.sum()} mistakes (red, true digit in brackets)')
    for index, cell in zip(shown, right.subplots(6, 10).flat):
        cell.imshow(images[index].asnumpy()[..., 0], cmap='gray_r')
        cell.set_title(f'{predictions[index]} ({labels[index]})' if wrong[index] else str(predictions[index]), fontsize=9, pad=2,
                       color='tab:red' if wrong[index] else 'black')
        cell.axis('off')
    figure.savefig(path, dpi=110)


def shorten(path):
    """`path` as it is typed from here."""
    here = pathlib.Path.cwd()
    return path.relative_to(here) if here in path.parents else path


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit('stopped')
