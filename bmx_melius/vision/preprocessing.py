"""Preprocessing of images for validation and prediction: decoding, resizing, cropping, normalization.

`InputSpec` does it with MXNet, in batches, and with NumPy and Pillow, for machines that only run packed networks; the results are equal.
"""

import dataclasses
import math
import numbers
import os
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Union

import numpy as np

from ..errors import UserError
from . import pixels
from .channel_files import MAX_CHANNELS

if TYPE_CHECKING:
    import mxnet as mx
    import PIL.Image

Image = Union[str, 'os.PathLike[str]', bytes, 'PIL.Image.Image', np.ndarray]

MAX_SIZE, MAX_RESIZE = 1 << 13, 1 << 14  # pixels; a description of a network may come from anywhere, and memory grows with their squares
_BILINEAR = 1  # OpenCV's INTER_LINEAR, which ImageRecordIter uses by default


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """Input of a network: its shape, and the preprocessing that converts an image to it.

    An image is resized so that its short side is `resize` (bilinear), the centre of `size` x `size` pixels is cropped, and channel c is
    normalized, ``(pixel - mean[c]) / std[c]``. `mx.io.ImageRecordIter` does the same for a validation set.

    Parameters
    ----------
    channels : int
        3, RGB; 1, gray; or another number up to 512, which .npy and TIFF files and arrays can have.
    size : int
        Height and width of the input in pixels.
    resize : int or None
        Length of the short side before the crop, at least `size`. None: resize to `size` x `size` without a crop.
    mean, std : tuple of float
        One value per channel, for pixels of 0 to 255. The defaults are ImageNet's.

    Raises
    ------
    UserError
        For invalid or contradictory values, and for sizes of more than 8192 pixels or a `resize` of more than 16384.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import InputSpec
    >>> spec = InputSpec(size=32, resize=36)
    >>> photo = mx.nd.random.randint(0, 256, shape=(48, 64, 3)).astype('uint8')
    >>> spec.crop(photo).shape
    (32, 32, 3)
    >>> inputs = spec.normalize(spec.crop(photo)).expand_dims(0)
    >>> inputs.shape  # the input of a network
    (1, 3, 32, 32)
    >>> bool((spec.array(photo.asnumpy()) == inputs.asnumpy()).all())  # without MXNet
    True
    """

    channels: int = 3
    size: int = 224
    resize: Optional[int] = 256
    mean: Tuple[float, ...] = (123.68, 116.779, 103.939)
    std: Tuple[float, ...] = (58.393, 57.12, 57.375)

    def __post_init__(self):
        if not _is_integer(self.channels) or not 1 <= self.channels <= MAX_CHANNELS:
            raise UserError(f'an input must have 3 (RGB), 1 (gray) or up to {MAX_CHANNELS} channels, not {self.channels}')
        for name in ('mean', 'std'):
            try:
                values = tuple(float(value) for value in getattr(self, name))
            except (TypeError, ValueError, OverflowError) as error:
                raise UserError(f'{name} must consist of finite numbers, not {getattr(self, name)!r}') from error
            object.__setattr__(self, name, values)  # JSON has lists instead of tuples
            if len(values) != self.channels:
                raise UserError(f'{name} needs one value for each of the {self.channels} channels, not {len(values)}')
            if not all(map(math.isfinite, values)):
                raise UserError(f'{name} must consist of finite numbers, not {values}')
        if min(self.std) <= 0:
            raise UserError(f'std must be positive, not {self.std}')
        for name, value, limit in (('input size', self.size, MAX_SIZE), ('short side before the crop', self.resize, MAX_RESIZE)):
            if value is not None and not (_is_integer(value) and 1 <= value <= limit) or value is None and name == 'input size':
                raise UserError(f'the {name} must be a whole number of pixels from 1 to {limit}, not {value!r}')
        if self.resize is not None and self.resize < self.size:
            raise UserError(f'cannot crop {self.size} pixels from a short side of {self.resize}: make resize at least size')

    @property
    def shape(self) -> Tuple[int, int, int]:
        """Shape of one image: (channels, size, size)."""
        return (self.channels, self.size, self.size)

    def to_json(self) -> Dict[str, Any]:
        """Return the fields as a dict that `json` can serialize."""
        return {**dataclasses.asdict(self), 'mean': list(self.mean), 'std': list(self.std)}

    @classmethod
    def from_json(cls, fields: Dict[str, Any]) -> 'InputSpec':
        """Build an `InputSpec` from the result of `to_json`. Raises `UserError` if a field is unknown, missing or malformed."""
        try:
            names = {field.name for field in dataclasses.fields(cls)}
            if set(fields) != names:
                raise UserError(f'the description of an input must have the fields {sorted(names)}, not {sorted(fields)}')
            return cls(**fields)
        except TypeError as error:
            raise UserError(f'malformed description of an input: {error}') from error

    def read(self, path: Union[str, os.PathLike]) -> 'mx.nd.NDArray':
        """Decode an image file to (height, width, channels), uint8.

        Raises
        ------
        OSError
            If the file cannot be read.
        UserError
            If it cannot be decoded, see `bmx_melius.vision.pixels.decode`.
        """
        import mxnet as mx  # here, because a machine that only runs packed networks does not have it

        return mx.nd.array(pixels.decode(pixels.read_file(path), os.fspath(path), self.channels), dtype='uint8')

    def crop(self, image: 'Union[mx.nd.NDArray, np.ndarray]') -> 'mx.nd.NDArray':
        """Resize an image and crop its centre: (height, width, channels) uint8 -> (size, size, channels) uint8."""
        import mxnet as mx

        if isinstance(image, np.ndarray):
            image = mx.nd.array(image, dtype='uint8')
        if image.shape[:2] == (self.size, self.size) and self.resize in (None, self.size):
            return image
        self._resized(*image.shape[:2])
        if self.resize is None:
            return mx.image.imresize(image, self.size, self.size, interp=_BILINEAR)
        return mx.image.center_crop(mx.image.resize_short(image, self.resize, interp=_BILINEAR), (self.size, self.size))[0]

    def crop_pixels(self, image: np.ndarray) -> np.ndarray:
        """Do as `crop`, from NumPy to NumPy. What is not resized does not pass through MXNet, which takes longer for small images."""
        if self._resized(*image.shape[:2]) == image.shape[:2]:
            return self._cropped(image)
        return self.crop(image).asnumpy()

    def normalize(self, image: 'mx.nd.NDArray') -> 'mx.nd.NDArray':
        """Normalize and transpose images: (..., height, width, channels) uint8 -> (..., channels, height, width) float32."""
        import mxnet as mx

        values = image.astype('float32')
        mean, std = (mx.nd.array(row, ctx=values.context) for row in (self.mean, self.std))
        values = (values - mean) / std
        leading = tuple(range(values.ndim - 3))
        return values.transpose((*leading, values.ndim - 1, values.ndim - 3, values.ndim - 2))

    def load(self, path: Union[str, os.PathLike]) -> 'mx.nd.NDArray':
        """Read and preprocess an image file. Returns (1, channels, size, size) float32. Raises as `read` does."""
        return self.normalize(self.crop(self.read(path))).expand_dims(0)

    def array(self, image: Image) -> np.ndarray:
        """Preprocess an image with NumPy and Pillow. Equals ``load(path).asnumpy()``, without MXNet.

        Parameters
        ----------
        image : path, bytes, PIL.Image.Image or numpy.ndarray
            An image file, or its content; or pixels, uint8: (height, width, 3), RGB, (height, width, 1) or (height, width), gray, or
            (height, width, channels). Colours are converted to gray or the reverse if the network needs that. A PIL image is not rotated
            by its EXIF header.

        Returns
        -------
        numpy.ndarray, (1, channels, size, size) float32

        Raises
        ------
        OSError
            If the file cannot be read.
        UserError
            If it cannot be decoded, see `bmx_melius.vision.pixels.decode`, or `image` has another type, shape or dtype.
        """
        return self._prepared(self._pixels(image))

    def decoded_array(self, content: bytes, name: str) -> np.ndarray:
        """Preprocess the content of an image file as `array` does. Raises `UserError`, which names the image, if it cannot be decoded."""
        return self._prepared(pixels.decode(content, name, self.channels))

    def normalized(self, pixels: np.ndarray) -> np.ndarray:
        """Normalize pixels, (N, channels, height, width) uint8, to float32.

        Raises
        ------
        UserError
            If they have another number of channels.
        """
        if pixels.ndim != 4 or pixels.shape[1] != self.channels:
            raise UserError(f'pixels must have the shape (N, {self.channels}, height, width), not {pixels.shape}')
        values = np.empty(pixels.shape, np.float32)
        self.normalize_into(values, pixels)
        return values

    def normalize_into(self, values: np.ndarray, pixels: np.ndarray) -> None:
        """Write normalized pixels, (..., channels, height, width) uint8, to float32 values of the same shape."""
        mean, std = (np.float32(numbers)[:, None, None] for numbers in (self.mean, self.std))
        np.subtract(pixels, mean, out=values)
        values /= std

    def _prepared(self, image):
        """Return the input, (1, channels, size, size) float32, of pixels, (height, width, channels) uint8."""
        normalized = (self._cropped(image).astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)
        return np.ascontiguousarray(normalized.transpose(2, 0, 1)[None])

    def _pixels(self, image):
        """Return the pixels of an image, (height, width, channels) uint8."""
        if isinstance(image, np.ndarray):
            return pixels.from_array(image, self.channels)
        if hasattr(image, 'convert') and hasattr(image, 'getbands'):  # a PIL image; Pillow need not be imported to find out
            return pixels.from_pillow(image, self.channels)
        if isinstance(image, (bytes, bytearray, memoryview)):
            return pixels.decode(bytes(image), 'the image', self.channels)
        try:
            path = os.fspath(image)
        except TypeError as error:
            raise UserError(
                f'an image must be a path, the bytes of a file, a PIL image or a NumPy array of uint8, not {type(image).__name__}'
            ) from error
        return pixels.decode(pixels.read_file(path), path, self.channels)

    def _cropped(self, image):
        """Resize and crop as `crop` does. Only the pixels of the crop are computed."""
        height, width = self._resized(*image.shape[:2])
        if self.resize is None:
            return pixels.resize(image, height, width)
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return pixels.resize(image, height, width, (slice(top, top + self.size), slice(left, left + self.size)))

    def _resized(self, height, width):
        """Return height and width of an image after resizing. Raises `UserError` if it would have too many pixels: it is long and thin."""
        if self.resize is None:
            return self.size, self.size
        short = min(height, width)
        resized = self.resize * height // short, self.resize * width // short
        if resized[0] * resized[1] > pixels.MAX_PIXELS:
            raise UserError(
                f'an image of {width} x {height} pixels would be resized to {resized[1]} x {resized[0]}; '
                f'at most {pixels.MAX_PIXELS} pixels are possible: crop it first'
            )
        return resized


def _is_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
