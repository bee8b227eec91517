// What the machine can do at most, one thread: the inner loops of the kernels on registers alone.
#pragma once

namespace bmx {

// Multiply-accumulates a second of exclusive or, population count and addition in the registers of an instruction set
// ("reference", "avx2", "avx512"; "amx" has the registers of avx512). Runs for about `seconds`. 0 for an instruction
// set that this build lacks; the CPU must have it.
double peak_binary(const char* isa, double seconds);

// Likewise of the tile unit, with one byte an element; 0 without amx.
double peak_tiles(double seconds);

// Likewise of fused multiply-add in float32.
double peak_float(const char* isa, double seconds);

}  // namespace bmx
