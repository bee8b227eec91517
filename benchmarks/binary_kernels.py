"""Build and run binary_kernels.cc: the speed of each instruction set's binary kernels, in one thread, beside the machine's peak.

Run: ``python benchmarks/binary_kernels.py [ROUNDS [INSTRUCTION_SET]]``

Measured on one core of a Xeon of the fourth generation that had other work, too: 1e12 multiply-accumulates a second of the convolution
alone, and with packing, in the fastest of 15 rounds (the medians that this prints were up to 15 % lower). Exclusive or, population count
and addition in registers: 1.2 to 1.4 as the clock goes (AVX2: .32), tiles 3.8:

====================  ============  ============  ============
3x3, 64 filters       AVX2          AVX-512       AMX
====================  ============  ============  ============
64 channels, 56x56    .39, .37      1.03, .94     1.70, 1.48
128 channels, 28x28   .44, .43      1.13, 1.05    1.83, 1.63
256 channels, 14x14   .50, .48      1.22, 1.15    2.02, 1.76
320 channels, 56x56   .50, .46      1.25, 1.10    2.06, 1.50
480 channels, 28x28   .51, .48      1.30, 1.19    1.89, 1.57
512 channels, 7x7     .47, .46      1.27, 1.19    1.95, 1.73
====================  ============  ============  ============

Since then AVX2 counts two pixels with one shuffle. One after the other at a lower clock, 64 filters: .38 in place of .28 at 64 channels,
.46 in place of .32 at 128 and .46 in place of .35 at 512. With a table for half a byte of each pixel and 32 filters a vector, microseconds
of processor time after and before: 251 and 303 for 64 channels, 205 and 252 for 128, 227 and 252 for 256, 242 and 266 for 512, as many
filters as channels; 1200 and 1287 for 64 filters of 320 channels, 467 and 474 of 480. Weights as bits for maps of few pixels (AMX): 512
channels and filters on 7x7 in 75 microseconds instead of 122 (bytes) or 105 (AVX-512).

Tried in their place:

- AVX-512, two words with five operations on pieces of fewer than 16 words: 3 % slower at 128 channels; on 24 or more 2 to 10 % faster
- AMX, blocks of four tiles of pixels and one strip of filters, which halves the traffic of weights: up to a fifth slower
- AMX, without a tile store every eight steps: a fifth slower from 256 channels on
- AMX, without storing results (what a fused threshold could save at most): 2.5 instead of 2.0 at 64 channels, 2.5 instead of 2.3 at 256
- AMX, all weights in the first cache: 2.1 to 2.4 in place of 1.6 to 1.9 from 128 channels on.
  Prefetching them by software made a loop of the same instructions 8 to 15 % slower
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'tests'))
from native_program import build_program  # noqa: E402

if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        program = build_program(folder, 'benchmarks/binary_kernels.cc', ['binary', 'float', 'dispatch', 'peak'], ['-O3'])
        sys.exit(subprocess.run([program, *sys.argv[1:]]).returncode)
