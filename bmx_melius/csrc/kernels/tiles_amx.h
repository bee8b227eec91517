// The tiles of AMX as matrix products use them: 0 to 3 hold sums of 16 lanes, 4 and 5 rows of the one factor, 6 and 7
// lanes of the other. Sums 0 and 1 belong to the lanes in 6, 2 and 3 to those in 7.
//
// A tile's number is part of an instruction, and the intrinsics take only literals.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kTileRows = 16, kTileRowBytes = 64;  // at most
constexpr int kTileBytes = kTileRows * kTileRowBytes;
constexpr int kTileCount = 8, kFirstLaneTile = 6;

// Of `rows` rows for sums and the factor of rows.
inline void configure_tiles(int rows) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } shapes;
    for (int tile = 0; tile < kTileCount; ++tile) {
        shapes.rows[tile] = static_cast<uint8_t>(tile < kFirstLaneTile ? rows : kTileRows);
        shapes.row_bytes[tile] = kTileRowBytes;
    }
    // (gcc's own intrinsic tells the optimizer of the first 8 bytes only)
    asm volatile("ldtilecfg %0" : : "m"(shapes));
}

inline void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// stride: bytes between rows in memory.
template <int tile>
void load_tile(const void* from, ptrdiff_t stride = kTileRowBytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}

template <int tile>
void store_tile(void* to, ptrdiff_t stride = kTileRowBytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
}

}  // namespace
}  // namespace bmx
