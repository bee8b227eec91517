"""RandAugment, random erasing and CutMix against NumPy: what they do to pixels and labels, and how often."""

import collections

import mxnet as mx
import numpy as np
import pytest
from support.images import encode, write_records

from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.image_source import ImageSource, TrainingImages
from bmx_melius.data.opening import AugmentationOptions, DataOptions, InputOptions, open_source
from bmx_melius.data.random_operations import ERASED_AREA, ERASED_ASPECT, MAX_MAGNITUDE, OPERATIONS, erase, randaugment
from bmx_melius.data.record_source import RecordImageSource
from bmx_melius.data.source import Batching
from bmx_melius.training.objective import CutMix, Objective
from bmx_melius.vision.preprocessing import InputSpec

IMAGE = np.random.RandomState(0).randint(0, 200, (20, 26, 3)).astype(np.uint8)
LUMA = np.array([0.299, 0.587, 0.114])


def moved(image, place):
    """Return the pixels at place(x, y), coordinates of centres of pixels; black outside."""
    result = np.zeros_like(image)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            column, row = (int(np.floor(value)) for value in place(x + 0.5, y + 0.5))
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                result[y, x] = image[row, column]
    return result


def rotated(image, degrees):
    sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    y0, x0 = image.shape[0] / 2, image.shape[1] / 2
    return moved(image, lambda x, y: (x0 + cosine * (x - x0) - sine * (y - y0), y0 + sine * (x - x0) + cosine * (y - y0)))


def blended(other, image, factor):
    return np.clip(other + (image.astype(float) - other) * (1 + factor), 0, 255)


def smoothed(image):
    """Return the image filtered by 1 1 1, 1 5 1, 1 1 1; the border is kept."""
    result = image.astype(float)
    for y in range(1, image.shape[0] - 1):
        for x in range(1, image.shape[1] - 1):
            result[y, x] = (image[y - 1 : y + 2, x - 1 : x + 2].astype(float).sum(axis=(0, 1)) + 4.0 * image[y, x]) / 13
    return np.rint(result)


def equalized(image):
    result = np.empty_like(image)
    for channel in range(3):
        counts = np.bincount(image[..., channel].ravel(), minlength=256)
        step = (counts.sum() - counts[np.nonzero(counts)[0][-1]]) // 255
        below = np.concatenate([[0], np.cumsum(counts)[:-1]])
        result[..., channel] = np.minimum((step // 2 + below) // step, 255)[image[..., channel]] if step else image[..., channel]
    return result


def stretched(image):
    low, high = image.min(axis=(0, 1)).astype(float), image.max(axis=(0, 1))
    return np.floor((image - low) * (255 / (high - low)))


EXPECTED = {
    'identity': lambda image, s: image,
    'autocontrast': lambda image, s: stretched(image),
    'equalize': lambda image, s: equalized(image),
    'rotate': rotated,
    'solarize': lambda image, s: np.where(image < 256 - s, image, 255 - image),
    'posterize': lambda image, s: image // 2 ** round(s) * 2 ** round(s),
    'color': lambda image, s: blended(np.rint(image @ LUMA)[..., None], image, s),
    'contrast': lambda image, s: blended(np.floor((image @ LUMA).mean() + 0.5), image, s),
    'brightness': lambda image, s: blended(0, image, s),
    'sharpness': lambda image, s: blended(smoothed(image), image, s),
    'shear-x': lambda image, s: moved(image, lambda x, y: (x + s * y, y)),
    'shear-y': lambda image, s: moved(image, lambda x, y: (x, y + s * x)),
    'translate-x': lambda image, s: moved(image, lambda x, y: (x + s * image.shape[1], y)),
    'translate-y': lambda image, s: moved(image, lambda x, y: (x, y + s * image.shape[0])),
}


@pytest.mark.parametrize('magnitude', [0, 7, MAX_MAGNITUDE])
@pytest.mark.parametrize('name', OPERATIONS)
def test_each_operation_equals_numpy(monkeypatch, name, magnitude):
    operation = OPERATIONS[name]
    monkeypatch.setattr('bmx_melius.data.random_operations.OPERATIONS', {name: operation})
    found = {randaugment(IMAGE, 1, magnitude, np.random.default_rng(seed)).tobytes() for seed in range(12)}
    signs = (1, -1) if operation.has_sign and magnitude else (1,)
    assert len(found) == len(signs)
    results = [np.frombuffer(octets, np.uint8).reshape(IMAGE.shape).astype(float) for octets in found]
    for sign in signs:
        expected = EXPECTED[name](IMAGE, sign * operation.max_strength * magnitude / MAX_MAGNITUDE)
        nearest = min(results, key=lambda result: np.abs(result - expected).mean())
        assert (np.abs(nearest - expected) <= 1.01).mean() > (0.98 if name in ('rotate', 'shear-x', 'shear-y') else 0.9999)


def test_randaugment_draws_all_operations_and_as_many_as_asked_for(monkeypatch):
    drawn = collections.Counter()
    for name, operation in OPERATIONS.items():
        counted = type(operation)(lambda image, strength, name=name: (drawn.update([name]), image)[1])
        monkeypatch.setitem(OPERATIONS, name, counted)
    for seed in range(700):
        randaugment(IMAGE, 2, 9, np.random.default_rng(seed))
    assert len(drawn) == 14 and sum(drawn.values()) == 1400 and min(drawn.values()) > 60 and max(drawn.values()) < 145


@pytest.mark.parametrize('channels', [1, 3])
def test_gray_and_colour_images_keep_their_shape(channels):
    image = IMAGE[..., :channels]
    for seed in range(40):
        result = erase(randaugment(image, 3, 20, np.random.default_rng(seed)), 1, np.random.default_rng(seed))
        assert result.shape == image.shape and result.dtype == np.uint8


def test_erased_rectangles_have_the_areas_aspects_and_frequency_of_the_paper():
    image = np.full((100, 100, 1), 255, np.uint8)
    erased, areas, aspects, values = 0, [], [], []
    for seed in range(800):
        result = erase(image, 0.25, np.random.default_rng(seed))[..., 0]
        rows, columns = np.nonzero((result != 255).any(axis=1))[0], np.nonzero((result != 255).any(axis=0))[0]
        if len(rows):
            height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
            erased += 1
            areas.append(height * width / 10000)
            aspects.append(height / width)
            values += result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].ravel().tolist()
    assert 0.2 < erased / 800 < 0.3
    assert ERASED_AREA[0] - 0.003 < min(areas) < 0.05 and 0.35 < max(areas) < ERASED_AREA[1] + 0.01 and 0.15 < np.mean(areas) < 0.25
    assert ERASED_ASPECT[0] - 0.03 < min(aspects) < 0.5 and 2.5 < max(aspects) < ERASED_ASPECT[1] + 0.3
    assert abs(np.mean(values) - 127.5) < 1 and (erase(image, 0, np.random.default_rng(1)) == image).all()


def test_cutmix_replaces_a_rectangle_and_mixes_labels_by_the_areas():
    images, labels, shares = np.random.RandomState(0).normal(size=(4, 2, 9, 7)).astype(np.float32), np.array([0, 2, 1, 2]), []
    for batch in range(60):
        mixture = CutMix(seed=5)
        mixed, targets = Objective(3, mixup=mixture).prepare(mx.nd.array(images), mx.nd.array(labels), 3, batch)
        rows, columns = mixture.rectangle(9, 7, 3, batch)
        inside = np.zeros((9, 7), bool)
        for y in range(9):
            for x in range(7):
                inside[y, x] = rows.start <= y < rows.stop and columns.start <= x < columns.stop
        for number in range(4):
            np.testing.assert_array_equal(mixed[number].asnumpy(), np.where(inside, images[3 - number], images[number]))
            expected = np.eye(3)[labels[number]] * (1 - inside.mean()) + np.eye(3)[labels[3 - number]] * inside.mean()
            np.testing.assert_allclose(targets[number].asnumpy(), expected, atol=1e-6)
        shares.append(inside.mean())
    assert (
        min(shares) < 0.05
        and max(shares) > 0.6
        and len({tuple(mixture.rectangle(9, 7, 0, batch)[0].indices(9)) for batch in range(30)}) > 5
    )


def test_areas_of_cutmix_before_the_cut_at_borders_are_uniform():
    mixture, size = CutMix(seed=1), 10001
    sides = []
    for batch in range(2000):
        rows, columns = mixture.rectangle(size, size, 0, batch)
        if min(rows.start, columns.start) > 0 and max(rows.stop, columns.stop) < size:
            sides.append((rows.stop - rows.start) / size)
    inside = np.array(sides)  # a side of length a lies inside with probability (1 - a)^2, and a^2 is uniform: density 2 a (1 - a)^2
    cumulative = [np.mean(inside <= side) for side in (0.25, 0.5, 0.75)]
    exact = [12 * (side**2 / 2 - 2 * side**3 / 3 + side**4 / 4) for side in (0.25, 0.5, 0.75)]
    np.testing.assert_allclose(cumulative, exact, atol=0.08)


SPEC = InputSpec(size=16, resize=18, mean=(0, 0, 0), std=(1, 1, 1))
BOTH = Augmentation(mirror=True, randaugment=(2, 9), random_erasing=0.5)


def test_batches_depend_on_seed_epoch_and_place_only():
    dataset = mx.gluon.data.ArrayDataset([mx.nd.array(IMAGE, dtype='uint8')] * 12, [number % 2 for number in range(12)])

    def source(threads, seed=3):
        return ImageSource(TrainingImages(dataset, dataset, ['a', 'b'], 'test'), SPEC, BOTH, Batching(4, seed), threads)

    def batches(source, first=0, epoch=2):
        return np.stack([images.asnumpy() for images, _ in source.train(epoch, first)])

    one, two = source(0), source(2)
    found = batches(one)
    np.testing.assert_array_equal(found, batches(two))
    np.testing.assert_array_equal(found[1:], batches(two, first=1))
    assert (found != batches(one, epoch=1)).any() and (found != batches(source(0, seed=4))).any()
    assert len({image.tobytes() for image in found.reshape(12, -1)}) == 12


def test_record_files_are_read_image_by_image_for_them(tmp_path):
    write_records(tmp_path / 'a', [encode(IMAGE)] * 6, [0, 1] * 3)
    files = {f'rec_{part}': str(tmp_path / 'a.rec') for part in ('train', 'val')}
    for options in ({'randaugment': [2, 9]}, {'random_erasing': 0.5}, {}):
        data, augmentation = DataOptions('imagenet', use_rec=True, **files), AugmentationOptions('low', **options)
        source = open_source(Batching(3), data, InputOptions(16, 1), augmentation)
        assert isinstance(source, RecordImageSource) == bool(options)
        assert len(list(source.train(0))) == 2
