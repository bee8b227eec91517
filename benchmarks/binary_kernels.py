"""Benchmark of the binary kernels of each instruction set in one thread, compared with the peak of the machine.

Builds and runs binary_kernels.cc.

Run: ``python benchmarks/binary_kernels.py [ROUNDS [INSTRUCTION_SET]]``

Measured on one core of a 4th-generation Xeon under other load, fastest of 15 rounds, in 1e12 multiply-accumulates per second: convolution
without packing, convolution with packing. (The medians that this program prints were up to 15 % lower.) Peak of exclusive or, population
count and addition in registers: 1.2 to 1.4 depending on the clock (AVX2: .32); tiles: 3.8.

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

Later changes, measured separately:

- AVX2 counts two pixels with one shuffle. Measured at a lower clock with 64 filters: .38 instead of .28 at 64 channels, .46 instead of .32
  at 128, and .46 instead of .35 at 512.
- AVX2 uses a table for a nibble of each pixel and 32 filters per vector. Processor time in microseconds after and before, with as many
  filters as channels: 251 and 303 at 64 channels, 205 and 252 at 128, 227 and 252 at 256, 242 and 266 at 512; with 64 filters: 1200 and
  1287 at 320 channels, 467 and 474 at 480.
- AVX2 computes four pixels and 64 filters at a time, with tables of numbers up to 3 instead of 4. AMD EPYC (family 25, model 17: Zen 4),
  former and new kernel in turns in one process, lower quartile of 8 to 25 runs, 1e12 a second: .63 and .82 to .85 at 64 channels on 56x56,
  .71 and .83 to .86 at 128, .70 and .87 to .89 at 256, .72 and .87 to .91 at 320; .72 and .91 to .94 at 480 on 28x28, .69 and .80 to .84 on
  14x14; .65 and .72 to .76 at 512 on 7x7. The binary steps of MeliusNet22, fastest of 4 and 2 alternating runs under other load: 4.11 and
  3.29 ms at 56x56, 2.13 and 1.71 at 28x28, .50 and .42 at 14x14, .17 and .15 at 7x7, in all 1.24 times as fast.
- AVX2 looks up numbers up to 2 instead of 3, adds six of them instead of four in a nibble, and prefetches the lines of the results.
  Same processor, minima of 120 runs with addends, multiply-accumulates a cycle before and after (before the kernel for four pixels):
  209 and 223 (170) at 64 channels on 56x56, 246 and 265 (200) at 192, 242 and 264 (200) at 320; 231 and 260 (193) at 160 on 28x28, 256
  and 276 (197) at 480; 236 and 254 (197) at 352 on 14x14; 202 and 212 (179) at 256 on 7x7, 216 and 230 (185) at 512.
- AVX2 uses a part of the weights for 56 pixels before the next part, and pairs of pixels half a row apart. Same processor, layers of
  MeliusNet22 one after the other with addends, minima of 500 runs under much other load, multiply-accumulates a cycle before and after: 226
  and 223 at 64 channels on 56x56, 256 and 268 at 192, 271 and 277 at 320; 253 and 264 at 160 on 28x28, 270 and 280 at 480; 236 and 256 at
  352 on 14x14; 166 and 187 at 256 on 7x7, 184 and 198 at 512.
- AVX-512 computed a row by one function, and the parities of a map 16 words at a time; pieces of 12 to 15 words are counted with five
  operations for two as well. Intel Xeon (Emerald Rapids, AVX-512 without AMX), with addends, minima of 20 rounds in turns under other
  load, 1e12 a second before and after: .79 and .87 at 128 channels on 56x56, .92 and .94 at 192, .97 and .99 at 320; .84 and .91 at 160
  on 28x28, .99 and 1.01 at 480; .94 and .96 at 224 on 14x14; .94 and .97 at 256 on 7x7, 1.01 and 1.03 at 512. The peaks there: .95 by
  popcount, 1.15.
- AVX-512 counts windows of at least 64 filters by carry-save in assembly language, with the words of a window copied to be contiguous.
  AMD EPYC (family 26: Zen 5), without addends, 1e12 a second before and after, medians of 15 rounds under other load: 2.24 and 2.37 at 64
  channels on 56x56, 2.55 and 3.06 at 320; 1.99 and 2.80 at 128 on 28x28, 2.76 and 3.15 at 480; 2.47 and 3.03 at 256 on 14x14; 2.70 and
  3.05 at 512 on 7x7. Rows filled in pairs afterwards: 1 to 2.5 % less time. The peaks there: 2.96 by popcount, 3.73 by carry-save.
- AVX-512 looks up numbers of six channels for 64 pixels and two filters in maps of many pixels. AMD EPYC (family 26: Zen 5), 64 filters on
  56x56 without addends, least microseconds of 400 runs before and after: 46 and 40 at 64 channels, 82 and 70 at 128, 118 and 97 at 192, 187
  and 158 at 320. 28x28, where it is not used: 25.2 and 23.8 at 160, 67.6 and 67.1 at 480, and 3 % slower within a network. The peaks there:
  4.72 by lookup, 3.73 by carry-save; the loop itself reaches 4.6.
- AMX keeps weights as bits for maps of few pixels: 512 channels and filters on 7x7 in 75 microseconds instead of 122 (bytes) or 105
  (AVX-512).

Rejected alternatives:

- AVX-512, lookup in planes: bands of 900 and 1600 pixels in place of 3200, 9 and 2 % slower in MeliusNet22, though 1600 are faster before a
  chain of elementwise operations; results of 64 filters stored at once instead of 32, 1 to 3 % slower; lines of results prefetched, the
  same; a multiplication or a shift of words in place of the product of matrices, the same; even and odd bytes widened by masks in place of
  unpacking, 0 to 4 % slower. A compiler's loop takes 1.5 times as long as that in assembly language
- AVX2, lookup in rows: six activations select a row with the numbers of 64 filters in halves of bytes, an addition from memory in place of
  a shuffle; rows are written in each run. AMD EPYC (family 26: Zen 5), 1e12 a second: 1.95 in the loop, where the peak of lookup is 1.31,
  but 1.74 in layers, where sums in bytes pass through the second-level cache; with finding rows, writing them and adding up bytes
  MeliusNet22's binary layers took 3672 in place of 3711 microseconds. Where shuffles have one port, as on Intel before Ice Lake, it may pay
  off
- AVX-512, bits of 512 pixels in a register and full adders over the channels whose weight is set: half the rate of carry-save, because a
  ternary operation with two results that were just computed has half its throughput
- AVX-512, carry-save on pieces of six words instead of contiguous windows: 1 to 6 % slower at 64 channels
- AVX-512 on Zen 5, all in minima of the loop or of a layer without packing: pieces of rows of taps in place of contiguous windows, 4 to 9
  % slower for 64 and 128 channels, 2 % faster for 512; twice the carries added by vpdpwssd, 4 % slower; pieces of 24 KB of weights for
  several rows, 6 % slower for 416 channels, the same for 672; 16 filters by carry-save, 1.3 times the time of counting words, 32 filters
  1.0 to 1.1 times; 64 filters and windows of 4, 8, 12, 16 and 18 words 1.5, 1.3, 1.2, 1.1 and 1.0 times
- AMX, blocks of four tiles of pixels and one strip of filters, which halves the traffic of weights: up to 20 % slower
- AMX, without a tile store every eight steps: 20 % slower from 256 channels on
- AMX, without storing results (upper bound of the gain of a fused threshold): 2.5 instead of 2.0 at 64 channels, 2.5 instead of 2.3 at 256
- AMX, all weights in the first-level cache: 2.1 to 2.4 instead of 1.6 to 1.9 from 128 channels on.
  Software prefetching made a loop of the same instructions 8 to 15 % slower
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'tests'))
from support.native_program import KERNEL_PARTS, build_program  # noqa: E402

if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        program = build_program(folder, 'benchmarks/binary_kernels.cc', [*KERNEL_PARTS, 'peak'], ['-O3'])
        sys.exit(subprocess.run([program, *sys.argv[1:]]).returncode)
