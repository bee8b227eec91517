// Weights of few levels that are kept as codes, the numbers of their levels.
//
// A code has 1, 2 or 4 bits. Codes stand in groups of 64 bytes, in words as large as the weights: the lowest bits of
// the words of a group are the codes of its first weights, the next bits those of the next weights, and so on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace bmx {

constexpr int kGroupBytes = 64, kMaxCodeBits = 4, kLevels = 1 << kMaxCodeBits;

// Returns the number of weights of a group.
constexpr int group_weights(int bits) { return kGroupBytes * 8 / bits; }

template <class Number>
struct Codes {
    using Word = std::conditional_t<sizeof(Number) == 1, uint8_t, uint32_t>;

    const Word* words;
    int bits;
    const Number*
        levels;     // kLevels, repeated every 1 << bits: kernels look up four bits, whose upper ones are of other codes
    size_t groups;  // of each array of weights
};

}  // namespace bmx
