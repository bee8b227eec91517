"""Store the network of a finished training among the weights that ship with the project, in `model_zoo/weights`.

    python tools/store_weights.py NAME RUN TEST_DATA [--data-dir FOLDER] [--trained-on TEXT]

NAME is the name of the network for `model_zoo.get_model`, RUN the folder of its training (`bmx-melius train --save-dir RUN`), TEST_DATA
labelled images that the training has not seen, as for `bmx-melius evaluate`. Written are the packed network, its weights for training, the
row of `networks.json`, the metrics of all epochs, the confusion matrix and the card. A network of the same name is replaced.

Binary layers only use the signs of their weights: these are stored in float16, with their signs, all others in float32. The packed
network is made from the stored weights, and evaluated.
"""

import argparse
import datetime
import json
import pathlib
import shlex
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402

from bmx_melius.analysis.confusion_plot import draw, save  # noqa: E402
from bmx_melius.analysis.counting import marked_bits  # noqa: E402
from bmx_melius.analysis.evaluation import evaluate  # noqa: E402
from bmx_melius.data.opening import open_images  # noqa: E402
from bmx_melius.deployment.convert.conversion import convert  # noqa: E402
from bmx_melius.deployment.runtime.session import Session, classifier_of  # noqa: E402
from bmx_melius.errors import UserError  # noqa: E402
from bmx_melius.files.exported import Exported, description_fields  # noqa: E402
from bmx_melius.files.io import replacing, sha256, write_json  # noqa: E402
from bmx_melius.files.parameters import read_arrays, write_parameters  # noqa: E402
from bmx_melius.files.stored_networks import TABLE, StoredNetwork  # noqa: E402
from bmx_melius.graph.tracing import read_graph  # noqa: E402
from bmx_melius.nn import marks  # noqa: E402
from bmx_melius.nn.fine_tuning import load_weights  # noqa: E402
from bmx_melius.training.saving.stored_checkpoints import description_of, read_state, verify_file  # noqa: E402
from model_zoo import get_model  # noqa: E402
from model_zoo.shipped import FOLDER  # noqa: E402

LICENCE = 'Apache-2.0'
_LEAST = np.float16(2.0**-24)  # the smallest number of float16 above 0


def binary_weights(net, shape):
    """Return the names in `_collect_params_with_prefix` of the weights of which binary layers only use the signs."""
    graph = read_graph(net, shape)
    roles = (marks.CONVOLUTION, marks.DENSE)
    named = {parameter.name: name for name, parameter in net._collect_params_with_prefix().items()}
    found = set()
    for node in graph.nodes:
        if node.marks.get(marks.ROLE) in roles and marked_bits(node) == 1:
            waiting = [node.inputs[1]]
            while waiting:
                source = waiting.pop()
                waiting += source.inputs
                found |= {named[source.name]} if source.name in named else set()
    return found


def with_signs(array):
    """Return an array in float16 in which each number has the sign that it had: none below 0 becomes 0.

    Raises `ValueError` for numbers beyond float16.
    """
    half = array.astype(np.float16)
    half[(half == 0) & (array < 0)] = -_LEAST
    if not np.isfinite(half).all() or not np.array_equal(half >= 0, array >= 0):
        raise ValueError('weights beyond the range of float16')
    return half


def interval_of(correct, images):
    """Return the 95 % interval of a share in percent (Wilson 1927, doi:10.1080/01621459.1927.10502953)."""
    return [round(100 * bound, 2) for bound in stats.binomtest(correct, images).proportion_ci(method='wilson')]


def trained_network(run):
    """Return the network of the best epoch of a finished run, its `Description` and the state of the run.

    Raises
    ------
    UserError
        If the run is not finished, or a file is damaged.
    """
    state = read_state(str(run / 'checkpoint.json'))
    history, epochs = state['progress']['history'], state['options']['num_epochs']
    if len(history) < epochs:
        raise UserError(f'{run} is not finished: {len(history)} of {epochs} epochs')
    best = max(history, key=lambda row: row['top1'])
    file = str(run / f'epoch-{best["epoch"]:04d}.params')
    verify_file(file)
    description = description_of(file)
    net = get_model(**description.model())
    load_weights(net, read_arrays(file), description.model()['classes'])
    return net, description, state, best


def store(name, run, data, data_dir=None, folder=FOLDER, trained_on=''):
    """Write the files of a network, its row and its card; return the row, a `StoredNetwork`. Errors as of `trained_network`.

    `trained_on` is a sentence for the card about the images of the training.
    """
    folder = pathlib.Path(folder)
    net, description, state, best = trained_network(pathlib.Path(run))
    spec, names = description.input_spec(), description.class_names()
    shape = (1, *spec.shape)
    net(mx.nd.zeros(shape))
    binary = binary_weights(net, shape)
    parameters = net._collect_params_with_prefix()
    arrays = {key: parameter.data().asnumpy() for key, parameter in parameters.items()}
    arrays = {key: with_signs(array) if key in binary else array for key, array in arrays.items()}
    for key, array in arrays.items():
        parameters[key].set_data(mx.nd.array(array, dtype='float32'))
    prefix = folder / name
    write_parameters(folder / f'{name}.params', arrays)
    with tempfile.TemporaryDirectory() as scratch:
        exported = Exported(str(pathlib.Path(scratch, name)))
        net.hybridize()
        net(mx.nd.zeros(shape))
        model = {**description.model(), 'name': name}
        exported.write(net, description_fields(model, spec, description.fields['counts'], names))
        convert(exported.symbol_file, exported.parameter_file(0), prefix, shape)
    packed = Exported(str(prefix))
    images = open_images(data, spec, threads=1, data_dir=data_dir)
    network = classifier_of(Session(packed), name, spec, names, packed.symbol_file)
    numbers = images.numbers_in(network.classes, names)
    batches = ((x.asnumpy(), numbers[labels], files) for x, labels, files in images.batches(spec, 64, 1))
    (evaluation,), _ = evaluate([network], batches)
    accuracy = evaluation.accuracy
    session = json.loads((pathlib.Path(run) / 'config.json').read_text())['sessions'][0]
    files = [packed.symbol_file, packed.parameter_file(0), str(folder / f'{name}.params')]
    row = StoredNetwork(
        folder=str(folder),
        name=name,
        model=description.model(),
        class_names=names,
        input=spec.to_json(),
        data=f'{images.origin}, {accuracy.images:,} images',
        images=accuracy.images,
        correct=accuracy.top1_hits,
        top1=round(100 * accuracy.top1, 2),
        interval=interval_of(accuracy.top1_hits, accuracy.images),
        epochs=best['epoch'],
        command=shlex.join(session['command']),
        commit=session['git']['revision'],
        licence=LICENCE,
        counts=description.fields['counts'],
        files={pathlib.Path(file).name: {'bytes': pathlib.Path(file).stat().st_size, 'sha256': sha256(file)} for file in files},
    )
    (folder / f'{name}-metrics.csv').write_bytes((pathlib.Path(run) / 'metrics.csv').read_bytes())
    picture = folder / f'{name}-confusion.png'
    save(draw(evaluation.confusion.counts, names, f'{name} on {row.data}: top-1 {accuracy.top1:.2%}'), str(picture))
    with replacing(folder / f'{name}.md') as temporary:
        pathlib.Path(temporary).write_text(
            card(row, evaluation, best, len(binary), state['options']['num_epochs'], trained_on), encoding='utf-8'
        )
    rows = [other for other in json.loads((folder / TABLE).read_text()) if other['name'] != name]
    fields = {key: value for key, value in vars(row).items() if key != 'folder'}
    write_json(folder / TABLE, sorted([*rows, fields], key=lambda one: one['name']))
    return row


def card(row, evaluation, best, binary, epochs, trained_on):
    """Return the card of a network, Markdown."""
    classes = '\n'.join(
        f'| {one["name"]} | {one["images"]} | {one["recall"]:.2%} | {one["precision"] or 0:.2%} | '
        f'{"" if one["taken_for"] is None else row.class_names[one["taken_for"]]} |'
        for one in evaluation.confusion.rows(row.class_names)
    )
    files = '\n'.join(f'| `{file}` | {facts["bytes"]:,} | `{facts["sha256"]}` |' for file, facts in row.files.items())
    options = ', '.join(f'{key}={value!r}' for key, value in row.model.items() if key != 'name')
    size, channels = row.input['size'], row.input['channels']
    dtypes = 'All arrays are float32.'
    if binary:
        dtypes = (
            f'The {binary} arrays of which binary layers only use the signs are float16, with their signs: this changes no prediction. '
            'All others are float32.'
        )
    return f"""# {row.name}

`{row.model['name']}` with {options}. Made by `tools/store_weights.py` on {datetime.date.today()}.

```python
from model_zoo import get_model, packed
import bmx_melius as bmx

session = bmx.Session(packed('{row.name}'))  # the packed network, without MXNet's arithmetic
net = get_model('{row.name}', pretrained=True)  # the same weights as a Gluon block, for fine-tuning
```

`bmx-melius predict {row.name} IMAGE` classifies images.

## Data and training

- Input: {channels} x {size} x {size}, mean {row.input['mean']}, standard deviation {row.input['std']}.
- Classes: {', '.join(row.class_names)}.{f'{chr(10)}- Images: {trained_on}' if trained_on else ''}
- Command, at commit `{row.commit}`: `{row.command}`
- Weights: epoch {row.epochs} of {epochs}, the best on the validation images of the training ({best['top1']:.2%}). [All
  epochs]({row.name}-metrics.csv).
- Licence of the weights: {row.licence}.

## Accuracy

Top-1 {row.top1} % ({row.correct:,} of {row.images:,} images; 95 % interval {row.interval[0]} to {row.interval[1]} %) on {row.data}, which
the training has not seen. Measured is the packed network.

| class | images | recall | precision | most often taken for |
|-|-|-|-|-|
{classes}

![confusion matrix]({row.name}-confusion.png)

## Files

| file | bytes | SHA-256 |
|-|-|-|
{files}

`{row.name}.params` has the weights for training, with the names of `save_parameters` (`net.load_parameters(file, cast_dtype=True)`).
{dtypes} The packed network is made from this file.

## Limits

- Trained on images of one data set: small, centred, on a plain background. Other photos are outside of it, and get a class all the same.
- The probabilities are not calibrated. The network has no class for anything else.
"""


def main():
    """Store the network that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name')
    parser.add_argument('run')
    parser.add_argument('data')
    parser.add_argument('--data-dir', help='folder of the files of a dataset (default: as for `bmx-melius train`)')
    parser.add_argument('--trained-on', default='', metavar='TEXT', help='sentence about the images of the training, for the card')
    arguments = parser.parse_args()
    try:
        row = store(arguments.name, arguments.run, arguments.data, arguments.data_dir, trained_on=arguments.trained_on)
    except UserError as error:
        sys.exit(f'error: {error}')
    size = sum(one['bytes'] for one in row.files.values())
    print(f'{row.name}: top-1 {row.top1} % ({row.interval[0]} to {row.interval[1]} %), {size:,} bytes')


if __name__ == '__main__':
    main()
