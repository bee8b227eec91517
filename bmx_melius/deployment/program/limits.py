"""What a program may ask for at most.

A program is read before anything is known of who wrote it. These limits are checked while it is read, before anything of the size it asks
for is allocated, and keep the time and the memory that loading takes within some hundred times the size of the program. They lie far
above what networks need. ``csrc/limits.h`` has the same.
"""

import os

from ...errors import UserError

# Of a value or an operation.
MAX_CHANNELS = 1 << 20
MAX_SIZE = 1 << 16  # height or width
MAX_ELEMENTS = 1 << 31  # of one image's map or of a window of all channels, exclusive
MAX_WEIGHTS = 1 << 23  # per output of a binary convolution, exclusive: sums stay exact in float32
MAX_OPERANDS = 1 << 12  # inputs of an operation

# Of a program.
MAX_INPUTS = 1 << 12
MAX_OPERATIONS = 1 << 16
MAX_OUTPUTS = 1 << 12
MAX_ALL_OPERANDS = 1 << 18  # inputs of all operations
MAX_ALL_GROUPS = 1 << 18  # of all convolutions: each has arrays of its own
MAX_ALL_WEIGHTS = 1 << 30  # of all convolutions, with the filters of each group counted as a multiple of FILTER_BLOCK
FILTER_BLOCK = 64  # kernels compute so many filters at a time, and prepared weights are filled up to them

# Of a run.
MEMORY_VARIABLE = 'BMX_MELIUS_MEMORY_LIMIT'
MAX_MEMORY = 1 << 32  # bytes, unless the environment variable says otherwise


def memory_limit():
    """The bytes of working memory that a run may take, and those that its outputs may.

    Raises
    ------
    UserError
        When the environment variable BMX_MELIUS_MEMORY_LIMIT is no number of bytes.
    """
    text = os.environ.get(MEMORY_VARIABLE, str(MAX_MEMORY))
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UserError(f'{MEMORY_VARIABLE} is {text!r}: it must be a number of bytes')
    return int(text)
