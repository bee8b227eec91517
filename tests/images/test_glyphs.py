"""Rendered characters: typefaces and images of the parts, distortion, repeatability."""

import os

import cv2
import matplotlib
import numpy as np
import pytest
from PIL import ImageFont

from bmx_melius.data.datasets import DATASETS
from bmx_melius.data.glyphs import CHARACTERS, TYPEFACES, GlyphImages, open_glyphs
from bmx_melius.data.opening import open_images


def font_path(typeface):
    return os.path.join(matplotlib.get_data_path(), 'fonts', 'ttf', f'{typeface}.ttf')


def test_every_typeface_has_all_characters_in_different_shapes():
    for typeface in sum(TYPEFACES.values(), ()):
        font = ImageFont.truetype(font_path(typeface), 40)
        shapes = {bytes(font.getmask(character)) for character in CHARACTERS}
        assert len(shapes) == len(CHARACTERS) == 62, typeface


def test_no_typeface_is_in_two_parts():
    faces = sum(TYPEFACES.values(), ())
    assert len(set(faces)) == len(faces) == 21


def test_parts_have_equally_many_images_of_each_class_and_more_than_20000_test_images():
    parts = open_glyphs()
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (24_800, 6_200, 20_460)
    assert parts.evaluation is parts.test
    labels = [GlyphImages('validation')[index][1] for index in range(2 * 62)]
    assert labels == [*range(62), *range(62)]


def test_images_depend_only_on_part_and_number():
    first, again = GlyphImages('test'), GlyphImages('test')
    wanted = [first[index][0].asnumpy() for index in range(5)]
    for index in (3, 1, 4, 0, 2):
        image = again[index][0]
        assert image.shape == (32, 32, 1) and image.dtype == np.uint8
        np.testing.assert_array_equal(image.asnumpy(), wanted[index])
        np.testing.assert_array_equal(again[index][0].asnumpy(), wanted[index])
    assert not np.array_equal(wanted[0], first[62 * 4][0].asnumpy()), 'the same class and typeface, distorted differently'
    assert not np.array_equal(wanted[0], GlyphImages('validation')[0][0].asnumpy())
    with pytest.raises(IndexError):
        first[len(first)]


def test_mean_and_deviation_of_the_dataset_are_those_of_its_pixels():
    images = GlyphImages('train')
    pixels = np.stack([images[index][0].asnumpy() for index in range(0, len(images), 17)]).astype(np.float64)
    spec = DATASETS['glyphs'].input
    assert pixels.mean() == pytest.approx(spec.mean[0], abs=4)
    assert pixels.std() == pytest.approx(spec.std[0], abs=4)


def test_characters_are_recognizable_by_correlation_with_the_undistorted_ones():
    """A nearest-template classifier with templates of the same typeface is far better than chance, and far from perfect."""
    images = GlyphImages('test')
    typeface = TYPEFACES['test'][0]
    templates = []
    for character in CHARACTERS:
        mask = np.zeros((64, 64), np.float32)
        glyph, offset = ImageFont.truetype(font_path(typeface), 44).getmask2(character, anchor='ms')
        width, height = glyph.size
        top, left = 46 + offset[1], 32 + offset[0]
        mask[top : top + height, left : left + width] = np.array(glyph).reshape(height, width)
        templates.append(cv2.resize(cv2.GaussianBlur(mask, (5, 5), 0), (32, 32), interpolation=cv2.INTER_AREA).ravel())
    templates = np.stack([(t - t.mean()) / t.std() for t in templates])
    correct = []
    for index in range(62 * 4):
        if index // 62 % 4 == 0:
            image, label = images[index]
            pixels = image.asnumpy().ravel().astype(np.float64)
            correct.append(np.abs(templates @ (pixels - pixels.mean())).argmax() == label)
    assert 0.35 < np.mean(correct) < 0.98


def test_a_network_is_evaluated_on_test_images_with_class_names():
    images = open_images('glyphs', DATASETS['glyphs'].input, threads=1)
    assert len(images) == 20_460 and images.class_names == list(CHARACTERS)
    batch, labels, names = next(images.batches(DATASETS['glyphs'].input, 8, threads=0))
    assert batch.shape == (8, 1, 32, 32) and list(labels) == list(range(8)) and names[0] == 'image 0'
    expected = (GlyphImages('test')[0][0].asnumpy()[..., 0].astype(np.float64) - 128.2) / 77.6
    np.testing.assert_allclose(batch[0, 0].asnumpy(), expected, atol=1e-5)
