#include "peaks/peak.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/common/multiply_add.h"
#include "peaks/peak_loop.h"

// Constraint of a register for floats in assembly language.
#if defined(__x86_64__) || defined(__i386__)
#define BMX_FLOAT_REGISTER "x"
#elif defined(__aarch64__)
#define BMX_FLOAT_REGISTER "w"
#else
#define BMX_FLOAT_REGISTER "m"
#endif

namespace bmx {
namespace {

struct Method {
    const char* isa;
    const char* name;
    MacKind kind;
    Rate rate;
};

constexpr Method kMethods[] = {
    {"reference", "xor, popcount, add", MacKind::binary, popcount_reference},
    {"reference", "multiply-add", MacKind::floats, float_reference},
    {"reference", "multiply, add", MacKind::int8, int8_reference},
#ifdef BMX_HAVE_AVX2
    {"avx2", "xor, popcount of nibbles, add", MacKind::binary, popcount_avx2},
    {"avx2", "carry-save", MacKind::binary, carry_save_avx2},
    {"avx2", "lookup", MacKind::binary, lookup_avx2},
    {"avx2", "fused multiply-add", MacKind::floats, float_avx2},
    {"avx2", "multiply and add pairs of 16 bits, add", MacKind::int8, int8_avx2},
#endif
#ifdef BMX_HAVE_AVXVNNI  // avxvnni has the binary and the float layers of avx2
    {"avxvnni", "xor, popcount of nibbles, add", MacKind::binary, popcount_avx2},
    {"avxvnni", "carry-save", MacKind::binary, carry_save_avx2},
    {"avxvnni", "lookup", MacKind::binary, lookup_avx2},
    {"avxvnni", "fused multiply-add", MacKind::floats, float_avx2},
    {"avxvnni", "dot products of bytes", MacKind::int8, int8_avxvnni},
#endif
#ifdef BMX_HAVE_AVX512
    {"avx512", "xor, popcount, add", MacKind::binary, popcount_avx512},
    {"avx512", "carry-save", MacKind::binary, carry_save_avx512},
    {"avx512", "lookup", MacKind::binary, lookup_avx512},
    {"avx512", "fused multiply-add", MacKind::floats, float_avx512},
    {"avx512", "dot products of bytes", MacKind::int8, int8_avx512},
#endif
#ifdef BMX_HAVE_AMX  // amx has the registers of avx512 as well
    {"amx", "xor, popcount, add", MacKind::binary, popcount_avx512},
    {"amx", "carry-save", MacKind::binary, carry_save_avx512},
    {"amx", "lookup", MacKind::binary, lookup_avx512},
    {"amx", "tile product", MacKind::binary, binary_tiles_amx},
    {"amx", "tile product of zeros", MacKind::binary, zero_tiles_amx},
    {"amx", "fused multiply-add", MacKind::floats, float_avx512},
    {"amx", "dot products of bytes", MacKind::int8, int8_avx512},
    {"amx", "tile product", MacKind::int8, byte_tiles_amx},
    {"amx", "tile product of zeros", MacKind::int8, zero_tiles_amx},
#endif
#ifdef BMX_HAVE_NEON
    {"neon", "xor, popcount of bytes, add", MacKind::binary, popcount_neon},
    {"neon", "fused multiply-add", MacKind::floats, float_neon},
    {"neon", "multiply pairs of bytes, add", MacKind::int8, int8_neon},
#endif
#ifdef BMX_HAVE_DOTPROD  // dotprod has the registers of neon
    {"dotprod", "xor, popcount of bytes, add", MacKind::binary, popcount_neon},
    {"dotprod", "lookup", MacKind::binary, lookup_dotprod},
    {"dotprod", "fused multiply-add", MacKind::floats, float_neon},
    {"dotprod", "dot products of bytes", MacKind::int8, int8_dotprod},
#endif
#if defined(BMX_HAVE_DOTPROD) && defined(BMX_HAVE_I8MM)  // i8mm has the binary and the float layers of dotprod
    {"i8mm", "xor, popcount of bytes, add", MacKind::binary, popcount_neon},
    {"i8mm", "lookup", MacKind::binary, lookup_dotprod},
    {"i8mm", "fused multiply-add", MacKind::floats, float_neon},
    {"i8mm", "matrix products of bytes", MacKind::int8, int8_i8mm},
#endif
#ifdef BMX_HAVE_WASM
    {"wasm", "xor, popcount of bytes, add", MacKind::binary, popcount_wasm},
    {"wasm", "multiply-add", MacKind::floats, float_wasm},
    {"wasm", "multiply and add pairs of 16 bits, add", MacKind::int8, int8_wasm},
#endif
};

}  // namespace

double popcount_reference(Operands operands, double seconds) {
    return rate_of_chains<8, 4, 1>(
        operands, seconds, 64, uint64_t(0), uint64_t(0x0123456789abcdef),
        [](uint64_t& word) BMX_INLINED { asm(""
                                             : "+r"(word)); },
        [](uint64_t& sum, const uint64_t (&words)[1]) BMX_INLINED { sum += __builtin_popcountll(words[0] ^ sum); });
}

double float_reference(Operands operands, double seconds) {
    return rate_of_chains<8, 4, 1>(
        operands, seconds, 1, 1.f, 1e-3f, [](float& x) BMX_INLINED { asm(""
                                                                         : "+" BMX_FLOAT_REGISTER(x)); },
        [](float& sum, const float (&x)[1]) BMX_INLINED { sum = multiply_add(sum, x[0], x[0]); });
}

double int8_reference(Operands operands, double seconds) {
    return rate_of_chains<8, 4, 1>(
        operands, seconds, 1, int32_t(0), int32_t(3), [](int32_t& x) BMX_INLINED { asm(""
                                                                                       : "+r"(x)); },
        [](int32_t& sum, const int32_t (&x)[1]) BMX_INLINED { sum += x[0] * x[0]; });
}

std::vector<Peak> measure_peaks(const InstructionSet& set, double seconds) {
    std::vector<Peak> peaks;
    for (const Method& method : kMethods) {
        if (!std::strcmp(set.name, method.isa)) {
            peaks.push_back({method.name, method.kind, method.rate(Operands::registers, seconds),
                             method.rate(Operands::cache, seconds)});
        }
    }
    return peaks;
}

double best_rate(const std::vector<Peak>& peaks, MacKind kind) {
    double best = 0;
    for (const Peak& peak : peaks) {
        best = peak.kind == kind ? std::max(best, peak.in_registers) : best;
    }
    return best;
}

}  // namespace bmx
