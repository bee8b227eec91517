// Measurement of the peak rates of one thread: the inner loops of the kernels, on registers only.
#pragma once

namespace bmx {

// Returns the multiply-accumulates per second of exclusive or, population count and addition in the registers of an
// instruction set ("reference", "avx2", "avx512"; "amx" has the registers of avx512), or 0 if this build lacks it. The
// CPU must support it. Takes about `seconds`.
double peak_binary(const char* isa, double seconds);

// The same for AMX tiles, with one byte per element; 0 without AMX.
double peak_tiles(double seconds);

// The same for fused multiply-add in float32.
double peak_float(const char* isa, double seconds);

}  // namespace bmx
