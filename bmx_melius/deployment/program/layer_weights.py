"""Weights of convolutions and dense layers of floats and of 8-bit integers, in whatever form a program stores them."""

from typing import Optional, Tuple

import numpy as np

from .operations import FLOAT, Operation


def expanded(shape: Tuple[int, ...], codes: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return weights of few levels, stored as the arrays of ``level_conv`` or ``level_int8_conv``, in the type of the levels.

    Parameters
    ----------
    shape : tuple of int
        (filters, channels, height, width)
    codes : numpy.ndarray of bool, shape (bits, weights)
    levels : numpy.ndarray of float32 or int8, shape (positions of the kernel or 1, 2^bits)
    """
    numbers = level_numbers(codes)
    return levels[np.arange(numbers.size) % len(levels), numbers].reshape(shape)


def level_numbers(codes: np.ndarray) -> np.ndarray:
    """Return the numbers of the levels, uint8 (weights,), of bit planes, bool (bits, weights)."""
    return np.packbits(codes, axis=0, bitorder='little')[0]


def weight_of(operation: Operation) -> np.ndarray:
    """Return the weight of a convolution or dense layer of floats, float32 (filters, channels / groups, height, width)."""
    arrays = operation.arrays
    if not operation.row.weight_levels:
        return arrays['weight'].astype(FLOAT)
    return _expanded(operation) * arrays['scale'][:, None, None, None]


def int8_weight_of(operation: Operation) -> np.ndarray:
    """Return the weight of a convolution or dense layer of 8-bit integers, int8 (filters, channels / groups, height, width)."""
    return _expanded(operation) if operation.row.weight_levels else operation.arrays['weight']


def _expanded(operation: Operation) -> np.ndarray:
    attributes = operation.attributes
    shape = (attributes['out_channels'], -1, attributes['kernel_h'], attributes['kernel_w'])
    return expanded(shape, operation.arrays['codes'], operation.arrays['levels'])


def bias_of(operation: Operation) -> Optional[np.ndarray]:
    """Return the bias of a convolution or dense layer of floats, float32 (filters,), or None if it has none."""
    return operation.arrays['bias'] if operation.attributes['has_bias'] else None


def weight_bits(operation: Operation) -> int:
    """Return how many bits a weight of a convolution or dense layer takes in a program, of a binary one 1."""
    if operation.row.weight_levels:
        return operation.attributes['bits']
    if operation.row.products == 'floats':
        return 16 if operation.attributes['half'] else 32
    return 8 if operation.row.products == 'int8' else 1
