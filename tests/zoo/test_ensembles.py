"""Ensembles: bootstrap samples, and votes."""

import collections
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon.data import ArrayDataset
from support.npy_files import header

import bmx_melius as bmx
import bmx_melius.__main__
from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.bootstrap import Bootstrap
from bmx_melius.data.image_source import ImageSource, TrainingImages
from bmx_melius.data.opening import AugmentationOptions, DataOptions, InputOptions, open_source
from bmx_melius.data.source import Batching
from bmx_melius.vision.preprocessing import InputSpec
from model_zoo import get_model

pytest_plugins = ['support.training_runs']  # its fixtures
EXPORTED = 'resnet18_benn'


# --- samples ---------------------------------------------------------------------------------------------------------------------------


def test_a_sample_without_weights_is_drawn_once_with_replacement():
    drawn = Bootstrap(5000, seed=1).indices(0)
    counts = np.bincount(drawn, minlength=5000)
    assert counts.sum() == 5000 and len(counts) == 5000
    assert np.mean(counts > 0) == pytest.approx(1 - np.exp(-1), abs=0.02)  # 63 %
    assert np.mean(counts == 2) == pytest.approx(np.exp(-1) / 2, abs=0.02)  # Poisson
    np.testing.assert_array_equal(Bootstrap(5000, seed=1).indices(7), drawn)
    assert np.any(Bootstrap(5000, seed=2).indices(0) != drawn)


def test_a_sample_with_weights_is_drawn_in_each_epoch_with_these_probabilities():
    weights = np.random.RandomState(0).rand(10)
    weights[4] = 0
    bootstrap = Bootstrap(10, 5, 8 * weights)
    counts = sum(np.bincount(bootstrap.indices(epoch), minlength=10) for epoch in range(3000))
    np.testing.assert_allclose(counts / counts.sum(), weights / weights.sum(), atol=0.01)
    assert counts[4] == 0
    np.testing.assert_array_equal(bootstrap.indices(8), Bootstrap(10, 5, weights).indices(8))


def source_of_numbers(tmp_path, weights=None, batching=None):
    """A source of 24 images whose pixels are their numbers."""
    pixels = [nd.full((2, 2, 1), number, dtype='uint8') for number in range(24)]
    dataset = ArrayDataset(pixels, [number % 2 for number in range(24)])
    spec = InputSpec(channels=1, size=2, resize=2, mean=(0,), std=(1,))
    bootstrap = True
    if weights is not None:
        bootstrap = str(tmp_path / 'weights.npy')
        if isinstance(weights, bytes):
            (tmp_path / 'weights.npy').write_bytes(weights)
        else:
            np.save(bootstrap, weights)
    collection = TrainingImages(dataset, dataset, ['even', 'odd'], 'numbers')
    return ImageSource(collection, spec, Augmentation(), batching or Batching(4, seed=6), 0, bootstrap)


def numbers(batches):
    return [int(x) for pixels, labels in batches for x in pixels.asnumpy()[:, 0, 0, 0]]


@pytest.mark.parametrize('weighted', [False, True])
def test_the_batches_of_an_epoch_are_the_sample_in_another_order_in_each_epoch(tmp_path, weighted):
    weights = np.arange(24) if weighted else None
    source = source_of_numbers(tmp_path, weights)
    for epoch in range(2):
        expected = Bootstrap(24, 6, weights).indices(epoch).tolist()
        assert collections.Counter(numbers(source.train(epoch))) == collections.Counter(expected)
        assert numbers(source.train(epoch, 4)) == numbers(source.train(epoch))[16:]
    assert numbers(source.train(0)) != numbers(source.train(1))
    parts = [numbers(source_of_numbers(tmp_path, weights, Batching(2, 6, part, 2)).train(1)) for part in range(2)]
    assert collections.Counter(sum(parts, [])) == collections.Counter(numbers(source.train(1)))
    assert numbers(source.train_in_order()) == numbers(source.validation()) == list(range(24))


def test_record_files_are_sampled_like_folders(images):
    def batches(**data):
        options = DataOptions('imagenet', num_workers=2, bootstrap=True, **data)
        source = open_source(Batching(6, seed=2), options, InputOptions(16), AugmentationOptions('low'))
        assert source.class_names is None or len(source.class_names) == source.classes == 3
        return [(pixels.asnumpy(), labels.asnumpy()) for pixels, labels in source.train(0)], source

    records = dict(use_rec=True, rec_train=f'{images}/rec/train.rec', rec_val=f'{images}/rec/val.rec')
    found, source = batches(**records)
    again, _ = batches(**records)
    assert len(found) == 5 and all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(found, again))
    in_order = np.concatenate([labels.asnumpy() for _, labels in source.train_in_order()])
    expected = in_order[Bootstrap(30, 2).indices(0)]
    assert sorted(np.concatenate([labels for _, labels in found])) == sorted(expected)
    source.decode_training_images()
    folders, _ = batches(data_dir=str(images))
    assert len(folders) == 5


@pytest.mark.parametrize(
    'content, words',
    [
        (b'text', 'cannot be read as an .npy file'),
        (header('(24,)').replace(b"'descr'", b'1') + bytes(96), 'cannot be read as an .npy file'),
        (b'PK\x03\x04', 'is an archive of arrays'),
        (np.ones(23), 'has the shape (23,), but there are 24 training images'),
        (-np.arange(24), 'must be finite, not negative, and not all zero'),
        (np.zeros(24), 'must be finite, not negative, and not all zero'),
        (np.full(24, np.nan), 'must be finite'),
        (np.full(24, 1e308), 'must be finite, not negative, and not all zero, and so must be their sum'),
    ],
)
def test_unusable_weights_are_refused(tmp_path, content, words):
    with pytest.raises(bmx.UserError, match=re.escape(words)):
        source_of_numbers(tmp_path, content)


# --- votes -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('vote', ['logits', 'softmax', 'hard'])
@pytest.mark.parametrize('alphas', [None, [1.0, 0.0, 0.5]])
def test_the_output_is_the_vote_of_networks_loaded_separately(vote, alphas, tmp_path):
    options = {'classes': 4, 'initial_layers': 'thumbnail', 'init_features': 4}
    net, x = get_model(EXPORTED, members=3, vote=vote, alphas=alphas, **options), nd.random.normal(shape=(5, 3, 8, 8))
    net.initialize()
    net.hybridize()
    net(x)
    terms = []
    for number, member in enumerate(net.members):
        single = get_model('resnet18_xnor', **options)
        single.initialize(mx.init.Normal(1))
        logits = single(x).asnumpy().astype(np.float64)
        single.save_parameters(str(tmp_path / f'{number}.params'))
        member.load_parameters(str(tmp_path / f'{number}.params'))
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        terms.append(
            {
                'logits': logits,
                'softmax': exponentials / exponentials.sum(axis=1, keepdims=True),
                'hard': np.eye(4)[logits.argmax(axis=1)],
            }[vote]
        )
    expected = np.average(terms, axis=0, weights=alphas)
    found = net(x).asnumpy()
    if vote != 'logits':
        found = np.exp(found)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)
