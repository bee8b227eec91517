// Assignment of the AMX tile registers in matrix products: 0 to 3 hold sums of 16 lanes, 4 and 5 rows of the first
// factor, 6 and 7 lanes of the second one. Sums 0 and 1 belong to the lanes in 6, 2 and 3 to those in 7.
//
// The functions are templates because the number of a tile is part of the instruction.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kTileRows = 16, kTileRowBytes = 64;  // maximum size
constexpr int kTileBytes = kTileRows * kTileRowBytes;
constexpr int kTileCount = 8, kFirstLaneTile = 6;

}  // namespace
}  // namespace bmx

#ifdef BMX_EMULATED_TILES  // in tests
#include "csrc/emulated_tiles.h"
#else

namespace bmx {
namespace {

// Configures the tiles; sums and first factors have `rows` rows.
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
    // (the intrinsic of gcc declares only the first 8 bytes as an input)
    asm volatile("ldtilecfg %0" : : "m"(shapes));
}

template <int tile>
void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}

// `stride`: bytes between rows in memory.
template <int tile>
void load_tile(const void* from, ptrdiff_t stride = kTileRowBytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}

// The same for memory that is read again only when it has left the first-level cache.
template <int tile>
void load_tile_once(const void* from, ptrdiff_t stride = kTileRowBytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}

template <int tile>
void store_tile(void* to, ptrdiff_t stride = kTileRowBytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
}

}  // namespace
}  // namespace bmx

#endif

namespace bmx {
namespace {

template <int tile>
using TileNumber = std::integral_constant<int, tile>;

// Adds the products of bytes of one or two tiles of rows with one or two tiles of lanes to their sums. load(number)
// loads one of the tiles 4 to 7; begin(number) is called for each of the four sums, before its product.
template <int kRowTiles, int kLaneTiles, typename Load, typename Begin>
[[gnu::always_inline]] inline void add_byte_products(const Load& load, const Begin& begin) {
    load(TileNumber<6>());
    load(TileNumber<4>());
    begin(TileNumber<0>());
    _tile_dpbusd(0, 4, 6);
    begin(TileNumber<1>());
    if constexpr (kRowTiles > 1) {
        load(TileNumber<5>());
        _tile_dpbusd(1, 5, 6);
    }
    begin(TileNumber<2>());
    if constexpr (kLaneTiles > 1) {
        load(TileNumber<7>());
        _tile_dpbusd(2, 4, 7);
    }
    begin(TileNumber<3>());
    if constexpr (kRowTiles > 1 && kLaneTiles > 1) {
        _tile_dpbusd(3, 5, 7);
    }
}

inline void clear_sums() {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
}

}  // namespace
}  // namespace bmx
