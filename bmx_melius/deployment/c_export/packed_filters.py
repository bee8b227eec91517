"""Weights of few levels of 8-bit layers as they stay in flash memory: the numbers of their levels (``kernels/int8.c``).

A code has the numbers of two weights, those of a pair of filters at the same place of a window, and a word of 32 bits as many codes as
fit: weights of 1, 2 and 4 bits take as many, of 3 bits a fifteenth more. There are two forms:

- ``codes``: each number is looked up in the levels.
- ``pairs`` and the bits of a weight: each code is looked up in all sums of a level and 2^16 times another one, so that one product is those
  of both filters. It takes two thirds of the instructions, but the products of the codes of a word must have sums of 16 bits, and the table
  is larger.
"""

import dataclasses
from typing import Optional

import numpy as np

from ..program.layer_weights import level_numbers
from ..program.operation_table import MAX_INT16
from ..program.operations import Operation

_WORD = np.dtype('<u4')
_TABLE_SHARE = 2  # a table of pairs has at most the bytes of the codes divided by this


@dataclasses.dataclass(frozen=True)
class PackedFilters:
    """Packed weights of a layer.

    Attributes
    ----------
    kind : {'codes', 'pairs1', 'pairs2', 'pairs3', 'pairs4'}
    codes : numpy.ndarray
        uint32 (groups, pairs of filters, words); an odd last filter is a pair with itself.
    levels : numpy.ndarray
        int8 (2^bits,), or of pairs uint32 (4^bits,).
    bits : int
        Of the number of a level.
    """

    kind: str
    codes: np.ndarray
    levels: np.ndarray
    bits: int

    @property
    def in_word(self):
        """Codes in a word."""
        return _in_word(self.bits)


def packed_filters(operation: Operation, largest: int) -> Optional[PackedFilters]:
    """Return the packed weights of an 8-bit layer whose inputs are at most `largest`; None if they take no less than bytes.

    So do few weights, and weights whose levels depend on the position in the kernel, which conversion does not make of 8-bit layers.
    """
    attributes = operation.attributes
    if not operation.row.weight_levels or attributes['by_position']:
        return None
    bits, groups, (levels,) = attributes['bits'], attributes['groups'], operation.arrays['levels']
    numbers = level_numbers(operation.arrays['codes'])
    weights = numbers.size
    numbers = numbers.reshape(attributes['out_channels'], -1, attributes['kernel_h'] * attributes['kernel_w'])
    numbers = numbers.transpose(0, 2, 1).reshape(groups, attributes['out_channels'] // groups, -1)
    numbers = np.pad(numbers, ((0, 0), (0, numbers.shape[1] % 2), (0, 0)), 'edge')
    codes = numbers[:, ::2] << bits | numbers[:, 1::2]
    in_word = _in_word(bits)
    codes = np.pad(codes, ((0, 0), (0, 0), (0, -codes.shape[2] % in_word))).reshape(*codes.shape[:2], -1, in_word).astype(_WORD)
    words = np.bitwise_or.reduce(codes << (32 - 2 * bits * np.arange(1, in_word + 1)).astype(_WORD), axis=3)
    kind, both = 'codes', levels.astype('<i4')[:, None] + (levels.astype('<i4') << 16)
    if in_word * largest * np.abs(levels.astype(int)).max() <= MAX_INT16 and both.nbytes * _TABLE_SHARE <= words.nbytes:
        kind, levels = f'pairs{bits}', both.reshape(-1).view(_WORD)
    packed = PackedFilters(kind, words, levels, bits)
    return packed if words.nbytes + levels.nbytes < weights else None


def _in_word(bits):
    return 8 * _WORD.itemsize // (2 * bits)
