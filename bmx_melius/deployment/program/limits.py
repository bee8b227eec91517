"""Resource limits of programs.

Programs may come from untrusted sources. These limits are checked while a program is read, before memory of the requested size is
allocated, and keep the time and the memory of loading within a few thousand times the size of the program, plus some megabytes. They are
far above the needs of networks. ``make operations`` writes them for C++.
"""

import os

from ...errors import UserError

# Limits of a value or an operation.
MAX_CHANNELS = 1 << 20
MAX_SIZE = 1 << 16  # height or width
MAX_ELEMENTS = 1 << 31  # of one image's map or of a window of all channels, exclusive
MAX_WEIGHTS = 1 << 23  # per output of a binary convolution, exclusive: sums stay exact in float32
MAX_INT8_WEIGHTS = 1 << 16  # per output of a convolution of 8-bit integers, exclusive: sums fit into 32 bits
MAX_OPERANDS = 1 << 12  # inputs of an operation

# Limits of a program.
MAX_INPUTS = 1 << 12
MAX_OPERATIONS = 1 << 16
MAX_OUTPUTS = 1 << 12
MAX_ALL_OPERANDS = 1 << 18  # inputs of all operations
MAX_ALL_GROUPS = 1 << 18  # groups of all convolutions: each group has separate arrays
MAX_ALL_WEIGHTS = 1 << 30  # weights of all convolutions, with the filters of each group rounded up to FILTER_BLOCK
REPEATED_WORDS = 1 << 12  # of arrays and planes equal to stored arrays, plus REPEATED_PER_STORED for each word stored before
REPEATED_PER_STORED = 16
FILTER_BLOCK = 64  # filters that kernels compute at a time, to which prepared weights are padded

# Limits of a run.
MEMORY_VARIABLE = 'BMX_MELIUS_MEMORY_LIMIT'
MAX_MEMORY = 1 << 32  # bytes, the default of the environment variable

NARROW = {'MAX_ELEMENTS': 1 << 24, 'MAX_MEMORY': 1 << 30}  # of the engine in WebAssembly, whose addresses have 32 bits


def memory_limit() -> int:
    """Return the limit in bytes of the working memory of a run, which is also the limit of its outputs.

    Raises
    ------
    UserError
        If the environment variable BMX_MELIUS_MEMORY_LIMIT is not a positive number.
    """
    text = os.environ.get(MEMORY_VARIABLE, str(MAX_MEMORY))
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UserError(f'{MEMORY_VARIABLE} is {text!r}: it must be a number of bytes')
    return int(text)
