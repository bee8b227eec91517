// Tiles of AMX in plain C++, in the place of the instructions: for processors without them, and for sanitizers, which
// do not check what instructions in assembly language access. kernels/x86/tiles_amx.h includes this file if
// BMX_EMULATED_TILES is defined.
//
// Sums equal the processor's (Intel's manual, TDPBUSD and TDPBF16PS), but for float32 below 2^-126, which there
// become 0. Use of tiles that have not been configured, or before kernels/dispatch.cc has requested them, ends the
// program.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "csrc/emulated_permission.h"

namespace bmx {
namespace {

struct EmulatedTile {
    int rows;  // 0: not configured
    alignas(64) uint8_t bytes[kTileRows][kTileRowBytes];
};
thread_local EmulatedTile emulated_tiles[kTileCount];  // each thread has its registers

EmulatedTile& emulated_tile(int tile) {
    if (!emulated_tiles[tile].rows) {
        std::fprintf(stderr, "tile %d is used without a configuration\n", tile);
        std::abort();
    }
    return emulated_tiles[tile];
}

void zero_tile(int tile) { std::memset(emulated_tile(tile).bytes, 0, sizeof(EmulatedTile::bytes)); }

void release_tiles() {
    for (EmulatedTile& tile : emulated_tiles) {
        tile.rows = 0;
    }
}

void configure_tiles(int rows) {
    require_emulated_tiles();
    if (rows < 1 || rows > kTileRows) {
        std::fprintf(stderr, "tiles have 1 to %d rows, not %d\n", kTileRows, rows);
        std::abort();
    }
    for (int tile = 0; tile < kTileCount; ++tile) {
        emulated_tiles[tile].rows = tile < kFirstLaneTile ? rows : kTileRows;
        zero_tile(tile);
    }
}

template <int tile>
void load_tile(const void* from, ptrdiff_t stride = kTileRowBytes) {
    EmulatedTile& to = emulated_tile(tile);
    for (int row = 0; row < to.rows; ++row) {
        std::memcpy(to.bytes[row], static_cast<const uint8_t*>(from) + row * stride, kTileRowBytes);
    }
}

template <int tile>
void load_tile_once(const void* from, ptrdiff_t stride = kTileRowBytes) {
    load_tile<tile>(from, stride);
}

template <int tile>
void clear_tile() {
    zero_tile(tile);
}

template <int tile>
void store_tile(void* to, ptrdiff_t stride = kTileRowBytes) {
    const EmulatedTile& from = emulated_tile(tile);
    for (int row = 0; row < from.rows; ++row) {
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, from.bytes[row], kTileRowBytes);
    }
}

// Calls `add(sums, a, b)` for each row: 16 sums, 64 bytes of the first factor, and the second one, whose rows are
// kTileRowBytes apart and have 4 bytes for each sum.
template <typename Sum, typename Add>
void add_products(int sums, int a, int b, const Add& add) {
    EmulatedTile& to = emulated_tile(sums);
    const EmulatedTile &rows = emulated_tile(a), &lanes = emulated_tile(b);
    for (int row = 0; row < to.rows; ++row) {
        Sum of_row[kTileRowBytes / sizeof(Sum)];
        std::memcpy(of_row, to.bytes[row], sizeof(of_row));
        add(of_row, rows.bytes[row], lanes.bytes[0]);
        std::memcpy(to.bytes[row], of_row, sizeof(of_row));
    }
}

// Unsigned bytes of the first factor, signed bytes of the second. The loops take most of the time, and only read tiles:
// they are optimized and not checked.
#define BMX_TILE_LOOP __attribute__((optimize("O3"), no_sanitize("address", "undefined"), unused))
BMX_TILE_LOOP void add_bytes(int32_t* sums, const uint8_t* a, const uint8_t* b) {
    for (int k = 0; k < kTileRows; ++k) {
        for (int lane = 0; lane < kTileRowBytes / 4; ++lane) {
            for (int i = 0; i < 4; ++i) {
                sums[lane] += a[4 * k + i] * static_cast<int8_t>(b[kTileRowBytes * k + 4 * lane + i]);
            }
        }
    }
}

// The sums of even and of odd elements are separate until the end.
BMX_TILE_LOOP void add_bfloat16(float* sums, const uint8_t* a, const uint8_t* b) {
    const auto number = [](const uint8_t* from) {
        const uint32_t bits = uint32_t(from[0]) << 16 | uint32_t(from[1]) << 24;
        float value;
        __builtin_memcpy(&value, &bits, sizeof(value));
        return value;
    };
    for (int lane = 0; lane < kTileRowBytes / 4; ++lane) {
        float parts[2] = {0, 0};
        for (int k = 0; k < kTileRows; ++k) {
            for (int i = 0; i < 2; ++i) {
                parts[i] += number(a + 4 * k + 2 * i) * number(b + kTileRowBytes * k + 4 * lane + 2 * i);
            }
        }
        sums[lane] += parts[0] + parts[1];
    }
}
#undef BMX_TILE_LOOP

}  // namespace
}  // namespace bmx

// The intrinsics that kernels use directly.
#undef _tile_release
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_release() release_tiles()
#define _tile_dpbusd(sums, a, b) add_products<int32_t>(sums, a, b, add_bytes)
#define _tile_dpbf16ps(sums, a, b) add_products<float>(sums, a, b, add_bfloat16)
