// What kernels with vectors of 128 bits share whose units are words and whose lanes of 32 bits are filters: prepared
// weights, [strip][tap][unit][filter], and the blocks of a run. A strip has up to kFilters filters.
#pragma once
#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_pack_words.h"
#include "kernels/common/binary_strips.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kVectorLanes = 4;
constexpr int kUnitBytes = 4;

// Units are words, which are only copied.
void expand(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride, words += stride) {
        std::memcpy(packed, words, size_t(units) * kUnitBytes);
    }
}

// Returns the number of vectors of the kernel that computes a strip: a power of 2.
int vectors_of(const Strip& strip) {
    int vectors = 1;
    while (vectors * kVectorLanes < strip.end - strip.begin) {
        vectors *= 2;
    }
    return vectors;
}

size_t filter_words(const BinaryConv& conv) { return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units(); }

template <int kFilters>
size_t strip_words(const BinaryConv& conv) {
    return filter_words(conv) * kFilters;
}

template <int kFilters>
size_t weights_bytes(const BinaryConv& conv) {
    return count_strips<kFilters>(conv) * strip_words<kFilters>(conv) * sizeof(uint32_t);
}

template <int kFilters>
void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    for_each_strip<kFilters>(conv, [&](const Strip& strip) {
        uint32_t* to = static_cast<uint32_t*>(prepared) + strip.index * strip_words<kFilters>(conv);
        const int end = strip.begin + vectors_of(strip) * kVectorLanes;
        for (size_t k = 0; k < filter_words(conv); ++k) {
            for (int filter = strip.begin; filter < end; ++filter) {
                *to++ = filter < strip.end ? words[filter * filter_words(conv) + k] : 0;
            }
        }
    });
}

// A block: the filters of a strip and neighbouring pixels of a row.
struct Block {
    const Strip* strip;
    const uint8_t* window;  // window of the first pixel, at the first unit of the group
    ptrdiff_t output;       // index of filter 0 of the first pixel
};

// State shared by all blocks of a run.
struct Shape {
    PiecesInMap pieces;
    ptrdiff_t pixel_step;
    size_t strip_words;
    Affine affine;
};

// Calls body(std::integral_constant<int, vectors>()) for a number of vectors, a power of 2 of at most kMax.
template <int kMax, int kVectors = 1, typename Body>
void with_vectors(int vectors, const Body& body) {
    if constexpr (kVectors < kMax) {
        if (vectors > kVectors) {
            return with_vectors<kMax, kVectors * 2>(vectors, body);
        }
    }
    body(std::integral_constant<int, kVectors>());
}

// Calls convolve_strip(vectors, shape, strip) for each strip of a run. `vectors`, its kernel's vectors, is a constant.
template <int kFilters, typename ConvolveStrip>
void for_each_strip_of_vectors(const BinaryConvRun& run, const ConvolveStrip& convolve_strip) {
    const BinaryConv& conv = *run.conv;
    const Shape shape = {pieces_in_map(run), conv.stride_w * run.pixel_bytes, strip_words<kFilters>(conv),
                         affine_of_differing(conv)};
    for_each_strip_block<1, kFilters>(run, [&](const Strip* strip, int) {
        with_vectors<kFilters / kVectorLanes>(vectors_of(*strip),
                                              [&](auto vectors) { convolve_strip(vectors, shape, *strip); });
    });
}

// Stores the first `count` results of a vector. `Vectors` is the struct of that name of an instruction set:
// results_of(sums, affine) returns the results of a vector of sums, store(results, output, addend) stores them.
template <typename Vectors, typename Results, typename T>
void store_some(Results results, int count, T* output, const T* addend) {
    T some[kVectorLanes], addends[kVectorLanes] = {};
    if (addend) {
        std::memcpy(addends, addend, count * sizeof(T));
    }
    Vectors::store(results, some, addends);
    std::memcpy(output, some, count * sizeof(T));
}

template <typename Vectors, typename T, typename Sums, int kPixels, int kVectors>
void store_numbers(const BinaryConvRun& run, const Affine& affine, const Block& block,
                   const Sums (&sums)[kPixels][kVectors]) {
    const ptrdiff_t first = block.output + block.strip->begin;
    const int filters = block.strip->end - block.strip->begin;
    for (int p = 0; p < kPixels; ++p) {
        const ptrdiff_t at = first + p * run.output_pixel;
        T* output = static_cast<T*>(run.output) + at;
        const T* addend = run.addend ? static_cast<const T*>(run.addend) + at : nullptr;
        for (int v = 0; v < kVectors; ++v, output += kVectorLanes, addend += addend ? kVectorLanes : 0) {
            const auto results = Vectors::results_of(sums[p][v], affine);
            const int left = filters - v * kVectorLanes;
            if (left >= kVectorLanes) {
                Vectors::store(results, output, addend);
            } else if (left > 0) {
                store_some<Vectors>(results, left, output, addend);
            }
        }
    }
}

// Stores the results of the sums of a block, as the numbers of the run.
template <typename Vectors, typename Sums, int kPixels, int kVectors>
void store_block(const BinaryConvRun& run, const Affine& affine, const Block& block,
                 const Sums (&sums)[kPixels][kVectors]) {
    if (run.type == DataType::f32) {
        store_numbers<Vectors, float>(run, affine, block, sums);
    } else {
        store_numbers<Vectors, int16_t>(run, affine, block, sums);
    }
}

// Returns the table of an instruction set with the functions that are its own.
template <int kFilters>
constexpr BinaryKernels word_lane_kernels(const char* name, decltype(BinaryKernels::pack_f32) pack_f32,
                                          decltype(BinaryKernels::pack_i16) pack_i16,
                                          decltype(BinaryKernels::pack_planes) pack_planes,
                                          decltype(BinaryKernels::convolve) convolve) {
    return {name,
            kUnitBytes,
            kFilters,
            kBandPixels,
            pack_f32,
            pack_i16,
            pack_planes,
            expand,
            weights_bytes<kFilters>,
            prepare_weights<kFilters>,
            no_scratch_bytes,
            convolve};
}

}  // namespace
}  // namespace bmx
