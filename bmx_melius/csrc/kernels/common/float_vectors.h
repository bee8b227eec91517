// Vectors of floats of any width, for the kernels of the files that include this one. The file of an instruction set
// defines `Lanes` in an anonymous namespace before it includes them, so that each instruction set is compiled
// separately. The members of Lanes are documented in float_avx512.cc.
#pragma once
#include "kernels/common/arithmetic.h"
#include "kernels/common/float_kernels.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {

using Real = Lanes::Real;
constexpr int kWidth = Lanes::width;

// Loads and stores of the first `count` elements, or of kWidth if count is larger.
Real load(const float* x, int count) { return count >= kWidth ? Lanes::load(x) : Lanes::load_first(x, count); }

void store(float* x, Real value, int count) {
    count >= kWidth ? Lanes::store(x, value) : Lanes::store_first(x, value, count);
}

// Loads the first `count` numbers, or kWidth if count is larger, as floats.
Real load_number(const float* x, int count) { return load(x, count); }
Real load_number(const int16_t* x, int count) { return Lanes::to_real(Lanes::load_integers(x, count)); }

// Loads every stride-th element from x on. Up to 2 kWidth elements beyond the last one of `count` are read.
Real load_strided(const float* x, int stride, int count) {
    if (stride == 1) {
        return Lanes::load(x);
    }
    if (stride == 2) {
        return Lanes::even(Lanes::load(x), Lanes::load(x + kWidth));
    }
    float elements[kWidth] = {};
    for (int i = 0; i < min(count, kWidth); ++i) {
        elements[i] = x[ptrdiff_t(i) * stride];
    }
    return Lanes::load(elements);
}

// Returns 0 where x < 0, x elsewhere: also -0 and NaN.
Real relu(Real x) { return Lanes::max(Lanes::zero(), x); }

// Returns x with +0 for -0: which of two zeros is the maximum depends on their order.
Real without_negative_zero(Real x) { return Lanes::add(x, Lanes::zero()); }

// Scale and shift of kWidth channels, starting at channel c.
struct Normalization {
    bool present;
    Real scale, shift;

    Normalization(const Epilogue& epilogue, int c, int count) : present(epilogue.scale), scale(), shift() {
        if (!present) {
            return;
        }
        scale = load(epilogue.scale + c, count);
        shift = load(epilogue.shift + c, count);
    }
    Real operator()(Real x) const { return present ? Lanes::multiply_add(x, scale, shift) : x; }
};

}  // namespace
}  // namespace bmx
