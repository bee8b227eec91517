"""Images for calibration: from an array, a file of one, or what networks are evaluated on."""

import dataclasses
import os

import numpy as np

from ...arithmetic import ceil_div, evenly_spaced
from ...errors import UserError
from ...files.npy import open_npy

MAX_IMAGES = 256
_BATCH = 16
_THREADS = 2
_SMALLEST = 1e-30  # of the largest number of inputs


def with_images(options, spec):
    """Return `LayerOptions` with calibration images, if there are any, read as `calibration_batches` with its parameter and errors."""
    if options.calibration is None:
        return options
    return dataclasses.replace(options, calibration=calibration_batches(options.calibration, spec))


def calibration_batches(source, spec):
    """Return calibration images as a list of inputs, float32 (N, C, H, W).

    Parameters
    ----------
    source : numpy.ndarray, str or os.PathLike
        Inputs, float32 (N, C, H, W); pixels, uint8 of the same shape, which `spec` normalizes; the path of an .npy file with such an array;
        or what `data.opening.open_images` takes: digits, glyphs (their training images, so that none of those on which the network is
        evaluated are used), a folder with CLASS/*.jpg or train/CLASS/*.jpg, a record file. At most 256 images are used, at equal
        distances.
    spec : InputSpec or None
        Preprocessing of the network.

    Raises
    ------
    UserError
        If there are no images, or they do not fit the network.
    """
    if isinstance(source, np.ndarray):
        return _of_array(source, spec, 'the calibration images')
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f'the calibration images must be an array of NumPy or a path, not {type(source).__name__}')
    path = os.fsdecode(source)
    if path.endswith('.npy') and os.path.isfile(path):
        return _of_array(open_npy(path), spec, path)
    if not os.path.exists(path) and (os.path.dirname(path) or os.path.splitext(path)[1]):  # not the name of a dataset
        raise UserError(f'there is no {path}, from which the calibration images should be read')
    if spec is None:
        raise UserError(
            f'the preprocessing of the images in {path} is not known: the network has no description (NAME-summary.json); give '
            '--input-size and other options, or input_spec, or calibrate with an array of inputs'
        )
    from ...data.opening import open_images

    images = open_images(path, spec, _THREADS, training=True)
    return [batch.asnumpy() for batch, _, _ in images.spread(MAX_IMAGES).batches(spec, _BATCH, _THREADS)]


def _of_array(array, spec, what):
    if (array.dtype, array.ndim) not in ((np.float32, 4), (np.float32, 2), (np.uint8, 4)):
        raise UserError(
            f'{what} must be an array (N, channels, height, width) of float32 or uint8, or (N, channels) of float32, not {array.dtype} '
            f'{array.shape}'
        )
    if not array.size:
        raise UserError(f'{what}: there are no images')
    chosen = evenly_spaced(len(array), MAX_IMAGES)
    if array.dtype == np.uint8 and spec is None:
        raise UserError(
            f'{what} are pixels, but the normalization of the network is not known: give it (--input-size, --mean and --std; in Python '
            'input_spec), or normalized float32'
        )
    batches = [array[part] for part in np.array_split(chosen, ceil_div(len(chosen), _BATCH))]
    if not all(np.isfinite(batch).all() for batch in batches):
        raise UserError(f'{what} have values that are not finite')
    largest = max(np.abs(batch).max() for batch in batches)
    if 0 < largest < _SMALLEST:
        raise UserError(
            f'{what} have no number larger than {largest:.3g}, which is nearly 0: they do not have the preprocessing of the network'
        )
    return [spec.normalized(batch) if batch.dtype == np.uint8 else np.ascontiguousarray(batch) for batch in batches]
