"""What augmentation does, measured in the batches that record files and folders yield: crops, mirroring, colours, normalization."""

import os

import cv2
import numpy as np
import pytest
from support.images import encode, write_records

from bmx_melius.data.augmentation import Augmentation
from bmx_melius.data.datasets import DATASETS, LEVELS
from bmx_melius.data.folders import open_folders
from bmx_melius.data.image_source import ImageSource, TrainingImages
from bmx_melius.data.record_source import RecordSource
from bmx_melius.data.records import RecordFile
from bmx_melius.data.source import Batching
from bmx_melius.vision.preprocessing import InputSpec

KINDS = ('records', 'folders')
SAMPLES = 1200
SIZE = 240  # of the image, pixels
INPUT = InputSpec(size=32, resize=40, mean=(0, 0, 0), std=(1, 1, 1))
PLAIN = InputSpec(size=8, resize=8, mean=(0, 0, 0), std=(1, 1, 1))
KS = 1.95 / np.sqrt(SAMPLES)  # Kolmogorov-Smirnov: a right distribution is farther off in one of a thousand tests
LOWEST, SPAN, STEP = 60, 60, 40  # values of the coded image: of its coordinates, and the height of a step of its blue squares,
SQUARE = 17  # which are so wide and high


def open_source(kind, folder, image, augmentation, spec, samples=SAMPLES):
    """A source that yields one image `samples` times in an epoch, from a file on the disk."""
    labels = [number % 2 for number in range(samples)]
    batching = Batching(samples // 12)
    if kind == 'records':
        write_records(folder / 'train', [encode(image)] * samples, labels)
        file = RecordFile(f'{folder}/train.rec', f'{folder}/train.idx')
        return RecordSource(file, file, spec, augmentation, batching, threads=1)
    for label in range(2):
        (folder / 'train' / str(label)).mkdir(parents=True)
    (folder / 'image.png').write_bytes(encode(image))
    for number, label in enumerate(labels):
        os.link(folder / 'image.png', folder / 'train' / str(label) / f'{number}.png')
    os.symlink(folder / 'train', folder / 'val')
    train, validation = open_folders(folder, spec)
    return ImageSource(TrainingImages(train, validation, train.class_names, 'test'), spec, augmentation, batching, threads=0)


def augmented(kind, folder, image, augmentation, spec, samples=SAMPLES):
    """The images of one epoch of `open_source`: (samples, 3, height, width) float64."""
    source = open_source(kind, folder, image, augmentation, spec, samples)
    return np.concatenate([images.asnumpy() for images, _ in source.train(0)]).astype(np.float64)


def coded_image():
    """Red grows with the column, green with the row, and blue is a checkerboard."""
    row, column = np.mgrid[:SIZE, :SIZE]
    blue = LOWEST + SPAN / 2 + STEP * ((row // SQUARE + column // SQUARE) % 2 - 0.5)
    return np.rint(np.stack([LOWEST + column / SIZE * SPAN, LOWEST + row / SIZE * SPAN, blue], axis=-1)).astype(np.uint8)


def decoded(images):
    """The crops of `coded_image`: rows of (left, top, width, height, mirrored, gain), coordinates in pixels of the image.

    Jitter multiplies the differences between the channels by the gain and adds to all channels a multiple of their luminance; noise adds
    a constant to each. So the differences tell everything: the gain by the height of the checkerboard's steps, then the coordinates by
    their slopes. Only the origin (left, top) is lost where there is jitter or noise.
    """
    size = images.shape[-1]
    row, column = np.mgrid[:size, :size].reshape(2, -1) + 0.5
    plane = np.stack([column, row, np.ones(size * size)], axis=1)
    found = []
    for red, green, blue in images.reshape(-1, 3, size * size):
        differences = np.stack([red - blue, green - blue], axis=1)
        slopes = fit(plane, differences)
        for _ in range(3):  # the squares tilt the first plane
            squares = (plane @ slopes - differences).sum(axis=1)
            low, high = np.quantile(squares, [0.15, 0.85])
            clear = np.abs(squares - (low + high) / 2) > (high - low) / 4  # no mixture of two squares
            blue_square = squares > (low + high) / 2
            slopes = fit(np.column_stack([plane, blue_square])[clear], differences[clear])[:3]
        steps = differences - plane @ slopes
        gain = (np.median(steps[~blue_square]) - np.median(steps[blue_square])) / STEP
        pixels = SIZE / SPAN / gain
        across, down = slopes[0, 0] * size * pixels, slopes[1, 1] * size * pixels
        left, top = slopes[2] * pixels + (SPAN - STEP) / 2 * SIZE / SPAN + 0.5  # differences from the darker squares
        found.append((min(left, left + across), top, abs(across), down, across < 0, gain))
    return np.array(found).T


def fit(inputs, outputs):
    """Least squares."""
    return np.linalg.solve(inputs.T @ inputs, inputs.T @ outputs)


def distance(values, distribution):
    """The largest difference between the distribution function of a sample and another one (Kolmogorov-Smirnov)."""
    values = np.sort(values)
    expected, steps = distribution(values), np.arange(len(values) + 1) / len(values)
    return max(np.abs(expected - steps[:-1]).max(), np.abs(expected - steps[1:]).max())


def uniform(low, high):
    """The distribution function of the uniform distribution."""
    return lambda values: np.clip((values - low) / (high - low), 0, 1)


def turned_aspect(values):
    """The distribution function of a number uniform in [3/4, 4/3] or, in half of the cases, its inverse."""
    inside = uniform(3 / 4, 4 / 3)
    return (inside(values) + 1 - inside(1 / values)) / 2


def share_of_small_areas(low, limit):
    """P(area < limit) of parts of a square image whose area is uniform in [low, 1], drawn again, with their aspect, until they fit."""
    area = np.linspace(low, 1, 100001)
    fits = turned_aspect(1 / area) - turned_aspect(area)
    return fits[area < limit].sum() / fits.sum()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('level', ['medium', 'high'])
def test_parts_have_the_areas_aspects_and_places_of_the_protocol_and_half_of_them_are_mirrored(tmp_path, kind, level):
    images = augmented(kind, tmp_path, coded_image(), DATASETS['imagenet'].augmentations[level], INPUT)
    left, top, width, height, mirrored, gain = decoded(images)
    area, aspect = width * height / SIZE**2, width / height
    assert np.quantile(area, 0.005) > 0.08 * 0.97 and np.quantile(area, 0.995) < 1.02
    assert np.quantile(aspect, 0.005) > 0.75 * 0.97 and np.quantile(aspect, 0.995) < 4 / 3 * 1.03
    always_fits = area < 0.75  # whatever the aspect
    assert abs(always_fits.mean() - share_of_small_areas(0.08, 0.75)) < 0.035
    assert distance(area[always_fits], uniform(0.08, 0.75)) < 1.3 * KS  # of fewer samples
    assert distance(aspect[always_fits], turned_aspect) < 1.3 * KS
    assert abs(mirrored.mean() - 0.5) < KS
    if level == 'medium':
        np.testing.assert_allclose(gain, 1, atol=0.05)
        for start, extent in ((left, width), (top, height)):
            small = extent < 0.7 * SIZE
            assert distance(start[small] / (SIZE - extent[small]), uniform(0, 1)) < 1.3 * KS
    else:  # three factors from [.6, 1.4]
        deviation = np.sqrt((1 + 0.4**2 / 3) ** 3 - 1)
        assert abs(gain.mean() - 1) < 0.03 and abs(gain.std() - deviation) < 0.03
        assert gain.min() > 0.6**3 * 0.9 and gain.max() < 1.4**3 * 1.1


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    'augmentation,places',
    [
        (DATASETS['imagenet'].augmentations['low'], range(0, 9)),  # 40 - 32 + 1
        (Augmentation(mirror=True, pad=2), range(-2, 11)),
    ],
    ids=['low', 'padded'],
)
def test_squares_have_the_scale_of_validation_and_any_place(tmp_path, kind, augmentation, places):
    images = augmented(kind, tmp_path, coded_image(), augmentation, INPUT)
    inside = [slice(2 * augmentation.pad, -2 * augmentation.pad or None)] * 2
    size = images[0, 0][tuple(inside)].shape[0]
    left, top, width, height, mirrored, _ = decoded(images[(..., *inside)].copy())
    scale = SIZE / INPUT.resize
    np.testing.assert_allclose(np.concatenate([width, height]), size * scale, rtol=0.03)
    for start in (left, top):
        place = start / scale - 2 * augmentation.pad
        np.testing.assert_allclose(place, np.rint(place), atol=0.2)
        counts = np.array([(np.rint(place) == number).sum() for number in places])
        assert counts.sum() == SAMPLES and distance_of_counts(counts) < 40, 'chi squared, of at most 12 degrees of freedom'
    assert abs(mirrored.mean() - 0.5) < KS


def distance_of_counts(counts):
    """Chi squared of counts that should be equal."""
    return ((counts - counts.mean()) ** 2 / counts.mean()).sum()


@pytest.mark.parametrize('kind', KINDS)
def test_padding_is_black(tmp_path, kind):
    images = augmented(kind, tmp_path, np.full((8, 8, 3), 200, np.uint8), Augmentation(pad=4), PLAIN, 240)
    assert set(np.unique(images)) == {0, 200}
    black = (images == 0).all(axis=1)
    assert abs(black.mean() - (1 - np.mean([1 - abs(shift) / 8 for shift in range(-4, 5)]) ** 2)) < 0.03


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('height', [40, 20])
def test_an_image_in_which_no_crop_fits_is_cropped_at_its_centre(tmp_path, kind, height):
    image = np.random.RandomState(0).randint(0, 256, (height, 400, 3)).astype(np.uint8)
    size = INPUT.size
    images = augmented(kind, tmp_path, image, Augmentation(area=(0.5, 1.0)), INPUT, 24)
    enlarged = image if height > size else cv2.resize(image, (400 * size // height, size))
    top, left = (enlarged.shape[0] - size) // 2, (enlarged.shape[1] - size) // 2
    centre = enlarged[top : top + size, left : left + size].transpose(2, 0, 1)
    np.testing.assert_array_equal(images, np.broadcast_to(centre, images.shape))


def coloured_image():
    """8 x 8 pixels of middling colours, which no jitter drives out of 0..255."""
    return np.random.RandomState(0).randint(40, 170, (8, 8, 3)).astype(np.uint8)


LUMINANCE = np.array([0.114, 0.587, 0.299])  # of R, G, B: see `Augmentation`


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    'name,kept',
    [
        ('brightness', lambda image: np.zeros(len(image))),
        ('contrast', lambda image: np.einsum('nchw,c->n', image, LUMINANCE) / 64),
        ('saturation', lambda image: np.einsum('nchw,c->nhw', image, LUMINANCE)),
    ],
)
def test_jitter_multiplies_what_it_should_by_a_factor_within_its_range_and_keeps_the_rest(tmp_path, kind, name, kept):
    image = coloured_image()
    images = augmented(kind, tmp_path, image, Augmentation(**{name: 0.4}), PLAIN)
    original = image.transpose(2, 0, 1)[None].astype(np.float64)
    difference, before = (array[:, 0] - array[:, 1] for array in (images, original))
    factors = (difference * before).sum(axis=(1, 2)) / (before**2).sum()
    assert factors.min() > 0.59 and factors.max() < 1.41
    assert distance(factors, uniform(0.6, 1.4)) < KS
    centre = kept(original).reshape(1, 1, *(kept(original).shape[1:] or (1, 1)))
    expected = centre + (original - centre) * factors[:, None, None, None]
    assert np.abs(images - expected).max() < 2 and np.abs(kept(images) - kept(original)).max() < 1.5


class Constant:
    """A generator that draws the largest factor, the first place and the order of the arguments."""

    def uniform(self, low, high):
        return high

    def integers(self, high):
        return 0

    def permutation(self, number):
        return range(number)


@pytest.mark.parametrize(
    'name,kept',
    [
        ('brightness', lambda image: 0),
        ('contrast', lambda image: (image @ LUMINANCE).mean()),
        ('saturation', lambda image: (image @ LUMINANCE)[..., None]),
    ],
)
def test_pixels_are_rounded_to_nearest_and_clipped_after_a_jitter(name, kept):
    image = np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8)
    result = Augmentation(**{name: 0.4})(image, InputSpec(size=64, resize=64), Constant())
    expected = np.clip(kept(image) + (image - kept(image)) * 1.4, 0, 255)
    assert result.dtype == np.uint8 and (result == 255).sum() > 100
    assert np.abs(result - expected).max() < 0.5 + 1e-4


@pytest.mark.parametrize('kind', KINDS)
def test_noise_moves_all_pixels_together_along_the_principal_components(tmp_path, kind):
    image = coloured_image()
    moves = augmented(kind, tmp_path, image, Augmentation(pca_noise=0.1), PLAIN) - image.transpose(2, 0, 1)
    np.testing.assert_array_equal(moves, np.broadcast_to(moves[:, :, :1, :1], moves.shape))
    moves = moves[:, :, 0, 0] + 0.5  # it is rounded down
    components = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    deviations = 0.1 * np.array([55.46, 4.794, 1.148])
    np.testing.assert_allclose((moves @ components).std(axis=0), np.sqrt(deviations**2 + 1 / 12), rtol=0.06)  # and by the rounding
    assert (np.abs((moves @ components).mean(axis=0)) < 4 * np.sqrt(deviations**2 + 1 / 12) / np.sqrt(SAMPLES)).all()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('level', ['low', 'medium'])
def test_a_colour_becomes_its_distance_from_the_mean_in_deviations(tmp_path, kind, level):
    colour = (200, 100, 50)
    image = np.full((40, 30, 3), colour, np.uint8)
    spec = InputSpec(size=32, resize=40)
    source = open_source(kind, tmp_path, image, DATASETS['imagenet'].augmentations[level], spec, 24)
    expected = [(200 - 123.68) / 58.393, (100 - 116.779) / 57.12, (50 - 103.939) / 57.375]
    for batches in (source.train(0), source.validation()):
        images = np.concatenate([images.asnumpy() for images, _ in batches])
        assert images.shape == (24, 3, 32, 32)
        np.testing.assert_allclose(images.mean(axis=(0, 2, 3)), expected, rtol=1e-5)
        np.testing.assert_allclose(images.std(axis=(0, 2, 3)), 0, atol=1e-5)


@pytest.mark.parametrize('augmentation', [*DATASETS['digits'].augmentations.values(), Augmentation(pad=2, contrast=0.4, saturation=0.4)])
def test_gray_images_stay_gray_and_keep_their_shape(augmentation):
    image = np.random.RandomState(0).randint(0, 256, (10, 10, 1)).astype(np.uint8)
    result = augmentation(image, DATASETS['digits'].input, np.random.default_rng(0))
    assert result.shape == (8, 8, 1) and result.dtype == np.uint8


def test_levels_are_those_of_the_protocol():
    assert all(tuple(dataset.augmentations) == LEVELS for dataset in DATASETS.values())
    assert DATASETS['imagenet'].augmentations == {
        'low': Augmentation(mirror=True),
        'medium': Augmentation(area=(0.08, 1.0), aspect=(3 / 4, 4 / 3), mirror=True),
        'high': Augmentation((0.08, 1.0), (3 / 4, 4 / 3), mirror=True, brightness=0.4, contrast=0.4, saturation=0.4, pca_noise=0.1),
    }
    for name in ('digits', 'mnist'):
        assert not any(level.mirror for level in DATASETS[name].augmentations.values()), 'a mirrored digit is not a digit'
