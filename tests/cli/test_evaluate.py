"""The command that evaluates: numbers of scikit-learn and of plain loops, whatever the data lie in, and packing changes none of them."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import struct

import cv2
import mxnet as mx
import numpy as np
import pytest
import sklearn.metrics
from mxnet.gluon import nn
from support.conversions import imported
from support.images import CLASSES, VALIDATION, make_large_photos
from support.small_networks import initialized, sequence
from support.training_runs import inputs_of_digits, read_csv

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.analysis import confusion_plot, mistakes_plot
from bmx_melius.cli import evaluate
from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.datasets import DATASETS
from bmx_melius.data.folders import open_folders
from bmx_melius.data.image_source import ImageSource, TrainingImages
from bmx_melius.data.record_source import RecordSource
from bmx_melius.data.records import RecordFile
from bmx_melius.data.small_images import open_digits
from bmx_melius.data.source import Batching
from bmx_melius.vision.preprocessing import InputSpec
from model_zoo import get_model

DIGITS = DATASETS['digits'].input
PHOTOS = InputSpec(size=24, resize=28)
NAMES = [f'class{label}' for label in range(CLASSES)]
pytest_plugins = ['support.training_runs']  # its fixtures


def test_a_small_confusion_plot_shows_numbers_and_names_and_a_large_one_a_pixel_for_each_cell(tmp_path):
    counts = np.array([[8, 2, 0], [0, 5, 0], [0, 0, 0]])
    axes, _ = confusion_plot.draw(counts, NAMES, 'title').axes
    assert {(*text.get_position(), text.get_text()) for text in axes.texts} == {(0, 0, '8'), (1, 0, '2'), (1, 1, '5')}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 1, 0], [0, 0, 0]])
    assert [label.get_text() for label in axes.get_yticklabels()] == [label.get_text() for label in axes.get_xticklabels()] == NAMES

    figure = confusion_plot.draw(np.eye(1000, dtype=int), [str(number) for number in range(1000)], 'title')
    confusion_plot.save(figure, tmp_path / 'large.png')
    assert cv2.imread(str(tmp_path / 'large.png')).shape[0] >= 1000
    assert figure.axes[0].get_window_extent().height >= 1000 and not figure.axes[0].texts


@pytest.mark.parametrize('channels,dtype', [(1, np.uint8), (3, np.uint8), (4, np.uint16)])
def test_the_picture_of_mistakes_has_each_image_with_both_names_and_is_cut_at_its_maximum(channels, dtype):
    images = np.random.RandomState(0).randint(0, np.iinfo(dtype).max, (80, 9, 9, channels)).astype(dtype)
    mistakes = [(number, 'a' * 40, f'b{number}', 0.5) for number in range(79, 1, -1)]
    figure = mistakes_plot.draw(lambda number: images[number], mistakes, 'title')
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == mistakes_plot.MAX_IMAGES and drawn[0].get_title().endswith('…\n→ b79 50%') and len(drawn[0].get_title()) < 40
    expected = images[78] / np.iinfo(dtype).max
    np.testing.assert_allclose(drawn[1].images[0].get_array(), expected if channels == 3 else expected.mean(axis=2), atol=1e-5)
    assert not [axes for axes in mistakes_plot.draw(None, [], 'none').axes if axes.images]


# --- the command ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(run):
    """Run ``bmx-melius evaluate``: (exit status, standard output, standard error)."""
    return lambda *arguments: run('evaluate', *arguments)


def export(prefix, spec, names, seed=1):
    """A small binary network with random weights, exported, and the same packed: the prefixes of both."""
    binary = bmx.BinaryConv2D(32, 3, padding=1)
    net = sequence(nn.Conv2D(16, 3, 2), nn.BatchNorm(), binary, nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Dense(len(names)))
    mx.random.seed(seed)
    initialized(net, (1, *spec.shape)).export(str(prefix))
    packed = f'{prefix}-packed'
    bmx.convert(f'{prefix}-symbol.json', f'{prefix}-0000.params', packed, (1, *spec.shape))
    describe(prefix, spec, names)
    shutil.copy(f'{prefix}-summary.json', f'{packed}-summary.json')
    return str(prefix), packed


def describe(prefix, spec=PHOTOS, names=NAMES):
    pathlib.Path(f'{prefix}-summary.json').write_text(json.dumps({'input': spec.to_json(), 'class_names': names}))


@pytest.fixture(scope='module')
def of_digits(tmp_path_factory):
    return export(tmp_path_factory.mktemp('digits') / 'net', DIGITS, list('0123456789'))


@pytest.fixture
def of_photos(tmp_path):
    return export(tmp_path / 'net', PHOTOS, NAMES)


def logits(prefix, inputs):
    return imported(prefix)(mx.nd.array(inputs)).asnumpy()


def test_accuracy_on_digits_equals_that_of_numpy_packed_or_not(run, of_digits, tmp_path):
    inputs, labels = inputs_of_digits(open_digits().test)
    scores = logits(of_digits[0], inputs)
    predictions = scores.argmax(axis=1)
    expected = {
        'images': 364,
        'classes': 10,
        'top1': sklearn.metrics.accuracy_score(labels, predictions),
        'top5': sklearn.metrics.top_k_accuracy_score(labels, scores, k=5),
    }
    assert 0 < expected['top1'] < expected['top5'] < 1

    table, pictures = tmp_path / 'predictions.csv', ['--confusion', tmp_path / 'confusion.png', '--mistakes', tmp_path / 'mistakes.png']
    flags = ['--compare', of_digits[1], '--per-class', '--json', '--batch-size', 50, '--output', table, *pictures]
    status, output, errors = run(of_digits[0], 'digits', *flags)
    assert status == 0 and errors == ''
    found = json.loads(output)
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert {key: found['compared'][key] for key in ('images', 'top1', 'top5')} == {key: found[key] for key in ('images', 'top1', 'top5')}
    assert found['compared']['different_predictions'] == 0
    assert found['compared']['largest_difference'] < 1e-5 * np.abs(scores).max()
    matrix = sklearn.metrics.confusion_matrix(labels, predictions)
    assert [(row['name'], row['images'], row['hits']) for row in found['per_class']] == [
        (str(label), matrix[label].sum(), matrix[label, label]) for label in range(10)
    ]

    exponentials = np.exp(scores.astype(np.float64))
    probabilities = (exponentials / exponentials.sum(axis=1, keepdims=True)).max(axis=1)
    rows = read_csv(table)
    assert [(row['label'], row['prediction']) for row in rows] == [(str(a), str(b)) for a, b in zip(labels, predictions)]
    np.testing.assert_allclose([float(row['probability']) for row in rows], probabilities, rtol=1e-4)
    assert cv2.imread(str(tmp_path / 'confusion.png')) is not None and cv2.imread(str(tmp_path / 'mistakes.png')) is not None
    rates = sklearn.metrics.precision_recall_fscore_support(labels, predictions, zero_division=0)
    for name, values in zip(('precision', 'recall', 'f1'), rates):
        np.testing.assert_allclose([row[name] or 0 for row in found['per_class']], values)
        assert found['macro'][name] == pytest.approx(np.mean(values))

    status, output, _ = run(of_digits[1], 'digits', '--compare', of_digits[0], '--per-class')
    assert status == 0 and output.count(f'  {expected["top1"]:.2%}  ') >= 2 and 'different predictions: 0 of 364' in output
    assert f'macro average over the classes, {of_digits[1]}: precision {found["macro"]["precision"]:.2%}' in output
    assert re.search(r'^class +images +recall +precision +F1 +most often predicted instead\n-----', output, re.MULTILINE)


def test_a_long_evaluation_of_binary_layers_in_float_arithmetic_ends_with_the_command_that_packs(run, of_digits, monkeypatch):
    assert [run(prefix, 'digits')[2] for prefix in of_digits] == ['', '']
    monkeypatch.setattr(evaluate, '_LONG', 0)
    notes = [run(prefix, 'digits')[2] for prefix in of_digits]
    assert f'bmx-melius convert {of_digits[0]} {of_digits[0]}-packed' in notes[0] and notes[1] == ''


def test_the_difference_is_that_of_the_logits(run, of_digits, tmp_path):
    other, _ = export(tmp_path / 'other', DIGITS, list('0123456789'), seed=2)
    inputs = np.stack([DIGITS.normalize(DIGITS.crop(image)).asnumpy() for image, _ in open_digits().test])
    mine, its = (logits(prefix, inputs) for prefix in (of_digits[0], other))
    compared = json.loads(run(of_digits[0], 'digits', '--compare', other, '--json')[1])['compared']
    assert compared['different_predictions'] == (mine.argmax(axis=1) != its.argmax(axis=1)).sum() > 0
    assert compared['largest_difference'] == pytest.approx(np.abs(mine - its).max(), rel=1e-5)
    assert 'rounds sums differently' in run(of_digits[0], 'digits', '--compare', other)[1], 'why logits may differ'
    same = run(of_digits[0], 'digits', '--compare', of_digits[0])[1]
    assert same.endswith('largest difference of a logit: 0\n'), 'nothing to explain'


def test_folders_and_records_of_the_same_images_give_the_same_numbers(run, of_photos, images):
    inputs, labels = [], []
    for label, name in enumerate(NAMES):
        for path in sorted((images / 'val' / name).glob('*.jpg')):
            inputs.append(PHOTOS.load(path).asnumpy()[0])
            labels.append(label)
    predictions = logits(of_photos[0], np.stack(inputs)).argmax(axis=1)
    results = [
        json.loads(run(of_photos[0], data, '--json', '--per-class', '--batch-size', 5, '-j', threads)[1])
        for data in (images, images / 'val', images / 'rec' / 'val.rec')
        for threads in (1, 3)
    ]
    for result in results:
        assert result['images'] == CLASSES * VALIDATION == len(labels)
        assert result['top1'] == pytest.approx(np.mean(predictions == labels)) and result['top5'] == 1
        assert result['per_class'] == results[0]['per_class']


def test_images_and_folders_with_names_that_are_no_utf8_are_evaluated(run, of_photos, images, tmp_path):
    name = os.fsdecode(b'n\xff')
    shutil.copytree(images / 'val', tmp_path / name)
    (tmp_path / name / NAMES[0] / '0.jpg').rename(tmp_path / name / NAMES[0] / f'{name}.jpg')
    pictures = ['--confusion', tmp_path / 'confusion.png', '--mistakes', tmp_path / 'mistakes.png']
    status, output, _ = run(of_photos[0], tmp_path / name, '--output', tmp_path / 'out.csv', *pictures)
    assert status == 0 and f'{tmp_path}/n\\udcff' in output
    assert os.fsencode(f'{name}.jpg,') in (tmp_path / 'out.csv').read_bytes()
    assert cv2.imread(str(tmp_path / 'confusion.png')) is not None and cv2.imread(str(tmp_path / 'mistakes.png')) is not None


def test_large_photos_give_the_same_pixels_in_training_evaluation_and_prediction_packed_by_default_or_not(run, tmp_path, capsys):
    make_large_photos(tmp_path)
    assert main(['pack-images', str(tmp_path)]) == 0
    spec = InputSpec(size=96, resize=112, mean=(0, 0, 0), std=(1, 1, 1))
    paths = sorted((tmp_path / 'val').glob('*/*.jpg'))
    expected = np.concatenate([spec.load(path).asnumpy() for path in paths])
    records = [RecordFile(f'{tmp_path}/rec/{part}.rec', f'{tmp_path}/rec/{part}.idx') for part in ('train', 'val')]
    train, validation = open_folders(str(tmp_path), spec)
    arguments = {'spec': spec, 'augmentation': Augmentation(), 'batching': Batching(2), 'threads': 2}
    photos = TrainingImages(train, validation, train.class_names, 'photos')
    for source in (RecordSource(*records, **arguments), ImageSource(photos, **arguments)):
        np.testing.assert_array_equal(np.concatenate([images.asnumpy() for images, _ in source.validation()]), expected)

    prefix, _ = export(tmp_path / 'net', dataclasses.replace(spec, mean=(110, 110, 110), std=(20, 20, 20)), NAMES[:2])
    parameters = mx.nd.load(f'{prefix}-0000.params')
    mx.nd.save(f'{prefix}-0000.params', {name: array * (0.01 if 'dense' in name else 1) for name, array in parameters.items()})
    rows = []
    for data in (tmp_path, tmp_path / 'rec' / 'val.rec'):
        status, _, errors = run(prefix, data, '--output', tmp_path / 'predictions.csv')
        assert status == 0 and errors == ''
        rows.append([(row['prediction'], row['probability']) for row in read_csv(tmp_path / 'predictions.csv')])
    assert rows[0] == rows[1] and len({probability for _, probability in rows[0]}) == len(paths)
    capsys.readouterr()
    assert main(['predict', prefix, *map(str, paths), '--json']) == 0
    best = [prediction['top'][0] for prediction in json.loads(capsys.readouterr().out)['predictions']]
    assert [row['name'] for row in best] == [prediction for prediction, _ in rows[0]]
    np.testing.assert_allclose([row['probability'] for row in best], [float(probability) for _, probability in rows[0]], rtol=1e-4)


def test_folders_are_matched_with_classes_by_name_whatever_their_order(run, of_photos, images):
    before = json.loads(run(of_photos[0], images, '--json', '--per-class')[1])['per_class']
    parameters = mx.nd.load(f'{of_photos[0]}-0000.params')
    order = [2, 0, 1]  # the outputs of the network change places, and so do the names
    for name, array in parameters.items():
        if 'dense' in name:
            parameters[name] = array[order]
    mx.nd.save(f'{of_photos[0]}-0000.params', parameters)
    describe(of_photos[0], names=[NAMES[place] for place in order])
    after = json.loads(run(of_photos[0], images, '--json', '--per-class')[1])['per_class']
    figures = [{row['name']: (row['images'], row['hits'], row['mistakes']) for row in rows} for rows in (before, after)]
    assert figures[0] == figures[1] and sum(hits for _, hits, _ in figures[0].values()) > 0


def test_a_folder_may_lack_classes_of_the_network_that_has_names(run, of_photos, images, tmp_path):
    shutil.copytree(images / 'val' / NAMES[2], tmp_path / 'some' / NAMES[2])
    whole = json.loads(run(of_photos[0], images, '--json', '--per-class')[1])['per_class']
    some = json.loads(run(of_photos[0], tmp_path / 'some', '--json', '--per-class')[1])['per_class']
    rates = ('precision', 'f1', 'predicted')  # these depend on the images of the other classes
    found, expected = ({key: value for key, value in rows[2].items() if key not in rates} for rows in (some, whole))
    assert found == expected and found['images'] == VALIDATION
    assert [row['images'] for row in some] == [0, 0, VALIDATION]


def test_files_that_are_no_images_of_a_class_give_one_message(run, fails, of_photos, images, tmp_path, recwarn, caplog):
    def messages():
        return [*caplog.messages, *(str(warning.message) for warning in recwarn if '.jpg' in str(warning.message))]

    fails([of_photos[0], images / 'val' / NAMES[0]], 'no folders', 'one folder for each class', 'bmx-melius predict')
    assert not messages()

    shutil.copytree(images / 'val' / NAMES[0], tmp_path / 'some')
    shutil.copytree(images / 'val' / NAMES[1], tmp_path / 'some' / NAMES[1])
    status, output, _ = run(of_photos[0], tmp_path / 'some', '--json')
    assert status == 0 and json.loads(output)['images'] == VALIDATION
    (message,) = messages()
    assert message.endswith(', '.join(f'{number}.jpg' for number in range(VALIDATION)))


def test_a_checkpoint_of_a_network_of_the_zoo_is_evaluated_like_its_export(run, fails, tmp_path):
    params, net = tmp_path / 'epoch-0001.params', get_model('meliusnet22', classes=10, initial_layers='thumbnail')
    initialized(net, (1, *DIGITS.shape), mx.init.Xavier()).save_parameters(str(params))
    net.export(str(tmp_path / 'net'))
    describe(tmp_path / 'net', DIGITS, list('0123456789'))
    status, output, errors = run('meliusnet22', 'digits', '--params', params, '--compare', tmp_path / 'net', '--json')
    found = json.loads(output)
    assert 'no checkpoint beside' in errors and '10 classes and --initial-layers thumbnail' in errors
    assert status == 0 and found['images'] == 364 and found['input'] == DIGITS.to_json()
    assert found['compared']['different_predictions'] == 0 and found['compared']['largest_difference'] < 1e-4

    fails(['meliusnet22', 'digits', '--params', params, '--classes', 7], 'epoch-0001.params', '--classes')
    fails(['meliusnet29', 'digits', '--params', params], 'meliusnet29')
    fails(['meliusnet22', 'digits', '--params', tmp_path / 'none.params'], 'none.params')
    fails(['meliusnet22', 'digits'], '--params')
    announced = struct.pack('<QQQIii2qiii', 0x112, 0, 1, 0xF993FAC9, 0, 2, 1 << 20, 1 << 20, 1, 0, 0)  # one array of 2 ** 40 numbers
    (tmp_path / 'large.params').write_bytes(announced)
    fails(['meliusnet22', 'digits', '--params', tmp_path / 'large.params'], 'large.params is damaged: at byte', 'more bytes are expected')
    fails(['meliusnet23', 'digits', '--params', params], 'meliusnet23', 'meliusnet22')


def test_without_a_description_images_are_prepared_as_options_or_the_data_ask(run, of_digits, tmp_path):
    for suffix in ('-symbol.json', '-0000.params'):
        shutil.copy(of_digits[0] + suffix, f'{tmp_path / "net"}{suffix}')
    expected = json.loads(run(of_digits[0], 'digits', '--json')[1])
    status, output, errors = run(tmp_path / 'net', 'digits', '--json')
    assert status == 0 and 'as for digits' in errors and json.loads(output)['top1'] == expected['top1']
    status, output, errors = run(tmp_path / 'net', 'digits', '--json', '--mean', '0', '--std', '1')
    assert errors == '' and json.loads(output)['input'] == {**DIGITS.to_json(), 'mean': [0], 'std': [1]}


def test_the_files_of_a_dataset_are_found_in_the_folder_that_is_given(run, of_digits, tmp_path):
    labels = np.arange(12, dtype=np.uint8) % 10
    for part in ('train', 't10k'):
        (tmp_path / f'{part}-images-idx3-ubyte').write_bytes(struct.pack('>IIII', 2051, 12, 28, 28) + bytes(12 * 28 * 28))
        (tmp_path / f'{part}-labels-idx1-ubyte').write_bytes(struct.pack('>II', 2049, 12) + labels.tobytes())
    status, output, _ = run(of_digits[0], 'mnist', '--data-dir', tmp_path, '--json', '--output', tmp_path / 'all.csv')
    rows = read_csv(tmp_path / 'all.csv')
    assert status == 0 and [int(row['label']) for row in rows] == labels.tolist()
    (answer,) = {row['prediction'] for row in rows}  # for black images
    assert json.loads(output)['top1'] == pytest.approx(np.mean(labels == int(answer)))


def test_mistakes_are_one_line(fails, of_digits, of_photos, images, tmp_path):
    net, records = of_photos[0], images / 'rec' / 'val.rec'
    fails([of_digits[0], 'digits', '--data-dir', tmp_path], '--data-dir', 'not of digits')
    fails([of_digits[0], 'imagenet', '--data-dir', tmp_path], '--data-dir', 'not of imagenet')
    fails([of_digits[0], 'mnist', '--data-dir', tmp_path], 'train-images-idx3-ubyte')
    fails([tmp_path / 'none', 'digits'], 'none-symbol.json')
    fails([net, tmp_path / 'none'], 'none', 'digits')
    fails([net, 'digits'], 'no class of this name')
    (tmp_path / 'empty').mkdir()
    fails([net, tmp_path / 'empty'], 'no folders')
    fails([net, images, '--params', 'x.params'], '--params', 'zoo')
    fails([net, images, '--confusion', 'x.jpgg'], 'x.jpgg', '.png')
    fails([net, images, '--output', tmp_path / 'none' / 'x.csv'], 'x.csv', 'no folder')
    fails([net, images, '--compare', of_digits[0]], 'another input')
    fails([net, images, '--compare', tmp_path / 'none'], 'none')
    fails([net, images, '-j', '0'], '-j')
    fails([net, images, '--channels', '1', '--mean=1', '--std=1'], 'does not fit')

    describe(net, names=['class0', 'class1', 'klass2'])
    fails([net, images], "'class2'", 'no class of this name', "'class0'")
    describe(net, names=['class0', 'class0', 'class1'])
    fails([net, images], "'class0'", 'two classes of this name')
    fails([net, images, '--compare', of_photos[1]], 'class_names')
    describe(net, names=[1, 2, 3])
    fails([net, images], 'class_names')
    describe(net, names=None)
    shutil.copytree(images / 'val' / NAMES[1], tmp_path / 'some' / NAMES[1])
    fails([net, tmp_path / 'some'], '1 class', 'has 3', '--classes-file')
    shutil.copytree(images / 'val', tmp_path / 'noise')
    (tmp_path / 'noise' / NAMES[1] / '0.jpg').write_bytes(b'\xff\xd8 no image \xff\xd9')
    fails([net, tmp_path / 'noise'], '0.jpg', 'no image')
    shutil.copy(records, tmp_path / 'val.rec')
    fails([net, tmp_path / 'val.rec'], 'val.idx')
    two, _ = export(tmp_path / 'two', PHOTOS, NAMES[:2])
    fails([two, records], 'val.rec', 'labels up to 2', '0 to 1')

    parameters = mx.nd.load(f'{net}-0000.params')
    name = next(name for name in parameters if 'dense' in name and 'weight' in name)
    mx.nd.save(f'{net}-0000.params', {**parameters, name: parameters[name] * np.nan})
    fails([net, images], 'not finite', os.path.join('class0', '0.jpg'))
