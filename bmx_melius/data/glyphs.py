"""Glyphs: images of digits and Latin letters in 62 classes, rendered from the typefaces that matplotlib ships; nothing is downloaded.

Each image shows one character, distorted by a random affine map and a smooth random displacement (elastic distortion, Simard et al.,
"Best Practices for Convolutional Neural Networks Applied to Visual Document Analysis", 2003), with random foreground and background,
a brightness gradient and noise. Typefaces are divided among training, validation and test images, so that accuracy is measured on typefaces
that were not used in training. An image is rendered when it is first read, and depends only on its number and part.
"""

import functools
import os
import string

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..arithmetic import seed_for
from .source import Splits

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIZE = 32  # pixels

# Files of matplotlib's folder fonts/ttf that have digits and Latin letters. Omitted are those with only mathematical symbols (cmex10,
# cmsy10, STIXNonUni*, STIXSiz*) and those with only some of the characters (DejaVuSansDisplay, DejaVuSerifDisplay).
TYPEFACES = {
    'train': (
        'DejaVuSans', 'DejaVuSans-Bold', 'DejaVuSans-BoldOblique', 'DejaVuSansMono', 'DejaVuSansMono-Oblique', 'DejaVuSansMono-BoldOblique',
        'DejaVuSerif-Bold', 'DejaVuSerif-Italic', 'STIXGeneral', 'STIXGeneralBolIta', 'cmb10', 'cmmi10', 'cmr10',
    ),
    'validation': ('DejaVuSans-Oblique', 'DejaVuSerif-BoldItalic', 'STIXGeneralBol', 'cmtt10'),
    'test': ('DejaVuSansMono-Bold', 'DejaVuSerif', 'STIXGeneralItalic', 'cmss10'),
}  # fmt: skip
IMAGES_PER_CLASS = {'train': 400, 'validation': 100, 'test': 330}
_SEED = 20200116

# Masks of undistorted characters, at twice the size of the images.
_MASK, _FONT_SIZE, _BASELINE = 2 * SIZE, 44, 46

# Distortion and appearance: standard deviations (std) or largest values.
_ROTATION = 7  # degrees (std)
_SHEAR, _SCALE, _SHIFT = 0.15, 0.18, 2.0  # uniform up to: tangent, logarithm, pixels
_ELASTIC, _ELASTIC_NODES = 0.7, 5  # displacement in pixels (std) at the nodes of a grid, interpolated between them
_CONTRAST, _GRADIENT, _NOISE = 70, 40, 24  # gray levels: least difference of the two colors; largest gradient; largest std of the noise


class GlyphImages(gluon.data.Dataset):
    """Dataset of the glyphs of one part: pairs of NDArray (32, 32, 1) uint8 and int. Classes and typefaces alternate.

    Parameters
    ----------
    part : {'train', 'validation', 'test'}
    """

    def __init__(self, part):
        self._typefaces = TYPEFACES[part]
        self._images = IMAGES_PER_CLASS[part] * len(CHARACTERS)
        self._part = list(TYPEFACES).index(part)
        self._rendered = {}  # index -> NDArray of 1 KB

    def __len__(self):
        return self._images

    def __getitem__(self, index):
        if not 0 <= index < self._images:
            raise IndexError(index)
        label = index % len(CHARACTERS)
        if index not in self._rendered:
            typeface = self._typefaces[index // len(CHARACTERS) % len(self._typefaces)]
            random = np.random.default_rng(seed_for(_SEED, index, 1 + self._part))
            self._rendered[index] = mx.nd.from_numpy(_render(_mask(typeface, CHARACTERS[label]), random))
        return self._rendered[index], label


def open_glyphs():
    """Return the `Splits` of the glyphs: 24,800 training, 6,200 validation and 20,460 test images."""
    return Splits(*(GlyphImages(part) for part in ('train', 'validation', 'test')))


@functools.lru_cache(maxsize=None)
def _mask(typeface, character):
    """Return the undistorted character, an array (64, 64) float32: 1 inside the strokes, 0 outside. All share a baseline."""
    import cv2  # here, as in the functions below, because programs that use other data may run without these packages
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    path = os.path.join(matplotlib.get_data_path(), 'fonts', 'ttf', f'{typeface}.ttf')
    canvas = Image.new('L', (_MASK, _MASK))
    ImageDraw.Draw(canvas).text((_MASK / 2, _BASELINE), character, font=ImageFont.truetype(path, _FONT_SIZE), fill=255, anchor='ms')
    return cv2.GaussianBlur(np.asarray(canvas, np.float32) / 255, (3, 3), 0)  # smooths before sampling every other pixel


def _render(mask, random):
    """Return a distorted image (32, 32, 1) uint8 of a mask, with random colors and noise."""
    import cv2

    shape = cv2.remap(mask, *_sampling(random), cv2.INTER_LINEAR)
    background, foreground = _colors(random)
    axis = np.linspace(-1, 1, SIZE, dtype=np.float32)
    slopes = random.uniform(-_GRADIENT / 2, _GRADIENT / 2, 2)
    image = background + (foreground - background) * shape + slopes[0] * axis[:, None] + slopes[1] * axis
    image += random.uniform(0, _NOISE) * random.standard_normal((SIZE, SIZE), dtype=np.float32)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)[..., None]


def _colors(random):
    """Return gray levels of background and foreground that differ by at least `_CONTRAST`."""
    low, high = np.sort(random.uniform(0, 255 - _CONTRAST, 2)) + (0, _CONTRAST)
    return (low, high) if random.random() < 0.5 else (high, low)


def _sampling(random):
    """Return where in the mask to sample each pixel of the image: arrays of x and y, (32, 32) float32."""
    import cv2

    angle, shear = np.radians(_ROTATION) * random.standard_normal(), random.uniform(-_SHEAR, _SHEAR)
    scales, shift = np.exp(random.uniform(-_SCALE, _SCALE, 2)), random.uniform(-_SHIFT, _SHIFT, 2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = rotation @ np.array([[1, shear], [0, 1]]) * scales
    nodes = (_ELASTIC * random.standard_normal((_ELASTIC_NODES, _ELASTIC_NODES, 2))).astype(np.float32)
    displacement = cv2.resize(nodes, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
    center = (SIZE - 1) / 2
    x, y = np.meshgrid(np.arange(SIZE) - center - shift[0], np.arange(SIZE) - center - shift[1])
    pixels = np.stack([x, y], axis=-1) @ linear.T + displacement + center
    maps = (pixels * (_MASK / SIZE) + (_MASK / SIZE - 1) / 2).astype(np.float32)
    return maps[..., 0], maps[..., 1]
