"""Preprocessing of images for validation and prediction: decoding, resizing, cropping, normalization."""

import dataclasses
import os
from typing import Any, Dict, Optional, Tuple, Union

import mxnet as mx

from .errors import UserError

_BILINEAR = 1  # OpenCV's INTER_LINEAR, which ImageRecordIter uses by default


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """Input of a network: its shape, and the preprocessing that converts an image to it.

    An image is resized so that its short side is `resize` (bilinear), the centre of `size` x `size` pixels is cropped, and channel c is
    normalized, ``(pixel - mean[c]) / std[c]``. `mx.io.ImageRecordIter` does the same for a validation set.

    Parameters
    ----------
    channels : {3, 1}
        RGB or gray.
    size : int
        Height and width of the input in pixels.
    resize : int or None
        Length of the short side before the crop, at least `size`. None: resize to `size` x `size` without a crop.
    mean, std : tuple of float
        One value per channel, for pixels of 0 to 255. The defaults are those of ImageNet.

    Raises
    ------
    UserError
        For invalid or contradictory values.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import InputSpec
    >>> spec = InputSpec(size=32, resize=36)
    >>> photo = mx.nd.random.randint(0, 256, shape=(48, 64, 3)).astype('uint8')
    >>> spec.crop(photo).shape
    (32, 32, 3)
    >>> spec.normalize(spec.crop(photo)).expand_dims(0).shape  # the input of a network
    (1, 3, 32, 32)
    """

    channels: int = 3
    size: int = 224
    resize: Optional[int] = 256
    mean: Tuple[float, ...] = (123.68, 116.779, 103.939)
    std: Tuple[float, ...] = (58.393, 57.12, 57.375)

    def __post_init__(self):
        if self.channels not in (1, 3):
            raise UserError(f'an input must have 3 (RGB) or 1 (gray) channels, not {self.channels}')
        for name in ('mean', 'std'):
            values = tuple(float(value) for value in getattr(self, name))
            object.__setattr__(self, name, values)  # JSON has lists instead of tuples
            if len(values) != self.channels:
                raise UserError(f'{name} needs one value for each of the {self.channels} channels, not {len(values)}')
        if min(self.std) <= 0:
            raise UserError(f'std must be positive, not {self.std}')
        if self.size < 1:
            raise UserError(f'the input size must be positive, not {self.size}')
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

    def read(self, path: Union[str, os.PathLike]) -> mx.nd.NDArray:
        """Decode an image file to (height, width, channels), uint8.

        Raises
        ------
        OSError
            If the file cannot be read.
        UserError
            If OpenCV cannot decode it.
        """
        with open(path, 'rb') as file:
            return self.decode(file.read(), path)

    def decode(self, content: bytes, name: Union[str, os.PathLike]) -> mx.nd.NDArray:
        """Decode the content of an image file as `read` does; `name` identifies the image in errors."""
        try:
            return mx.image.imdecode(content, flag=0 if self.channels == 1 else 1)
        except (mx.MXNetError, ValueError) as error:
            raise UserError(f'{name} cannot be decoded as an image (JPEG, PNG, ...)') from error

    def crop(self, image: mx.nd.NDArray) -> mx.nd.NDArray:
        """Resize an image and crop its centre: (height, width, channels) uint8 -> (size, size, channels) uint8."""
        if image.shape[:2] == (self.size, self.size) and self.resize in (None, self.size):
            return image
        if self.resize is None:
            return mx.image.imresize(image, self.size, self.size, interp=_BILINEAR)
        return mx.image.center_crop(mx.image.resize_short(image, self.resize, interp=_BILINEAR), (self.size, self.size))[0]

    def normalize(self, image: mx.nd.NDArray) -> mx.nd.NDArray:
        """Normalize and transpose images: (..., height, width, channels) uint8 -> (..., channels, height, width) float32."""
        pixels = image.astype('float32')
        mean, std = (mx.nd.array(values, ctx=pixels.context) for values in (self.mean, self.std))
        pixels = (pixels - mean) / std
        leading = tuple(range(pixels.ndim - 3))
        return pixels.transpose((*leading, pixels.ndim - 1, pixels.ndim - 3, pixels.ndim - 2))

    def load(self, path: Union[str, os.PathLike]) -> mx.nd.NDArray:
        """Read and preprocess an image file. Returns (1, channels, size, size) float32. Raises as `read` does."""
        return self.normalize(self.crop(self.read(path))).expand_dims(0)
