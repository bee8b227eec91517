"""Images for calibration: from an array, a file of one, or what networks are evaluated on."""

import numbers
import os

import numpy as np

from ...arithmetic import ceil_div, evenly_spaced
from ...errors import UserError
from ...files.npy import open_npy
from .calibration import MIN_CORRELATION, require_known
from .packing import Calibration

MAX_IMAGES = 256
_BATCH = 16
_THREADS = 2
_SMALLEST = 1e-30  # of the largest number of inputs


def read_calibration(source, ranges, keep_float, spec, half, min_correlation=MIN_CORRELATION):
    """Return the `Calibration` of a conversion, or None without images.

    Parameters
    ----------
    source : numpy.ndarray, path or None
        See `calibration_batches`.
    ranges : str
    keep_float : sequence of str
    spec : InputSpec or None
        Preprocessing of the network.
    half : bool
        Whether weights are stored in half precision, which excludes 8-bit layers.
    min_correlation : float
        From -1 to 1.

    Raises
    ------
    UserError
        If the arguments exclude each other, or there are no images.
    """
    require_known(ranges)
    if not isinstance(min_correlation, numbers.Real) or not -1 <= float(min_correlation) <= 1:
        raise UserError(f'min_correlation is a number from -1 to 1, not {min_correlation!r}')
    if source is None:
        if keep_float:
            raise UserError('keep_float names layers that do not become 8-bit integers: give calibration, too, or leave it out')
        return None
    if half:
        raise UserError(
            'layers are stored either in half precision or as 8-bit integers: give half (--half) or calibration (--int8), not both'
        )
    return Calibration(calibration_batches(source, spec), ranges, spec, keep_float, float(min_correlation))


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
