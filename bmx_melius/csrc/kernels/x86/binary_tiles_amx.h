// Expansion of bits to the bytes of tiles for AMX, and division of the output of binary layers into tiles of pixels.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 32;
constexpr int kChunk = kTileRowBytes;  // elements of a window per tile instruction

// Pixels that are fetched from the second-level cache, in which expanded maps are, before they are written.
constexpr int kExpandAhead = 24;

// Expands two units (or the last one) at a time for all pixels.
void expand(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    const __m512i ones = _mm512_set1_epi8(1);
    int unit = 0;
    for (; unit + 2 <= units; unit += 2) {
        const uint32_t* from = words + unit;
        uint8_t* to = packed + unit * kUnitBytes;
        for (int pixel = 0; pixel < pixels; ++pixel, from += stride, to += packed_stride) {
            uint64_t bits;
            std::memcpy(&bits, from, sizeof(bits));
            _mm_prefetch(to + kExpandAhead * packed_stride, _MM_HINT_T0);
            _mm512_storeu_si512(to, _mm512_maskz_mov_epi8(bits, ones));
        }
    }
    if (unit == units) {
        return;
    }
    const uint32_t* from = words + unit;
    uint8_t* to = packed + unit * kUnitBytes;
    for (int pixel = 0; pixel < pixels; ++pixel, from += stride, to += packed_stride) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_mov_epi8(*from, _mm512_castsi512_si256(ones)));
    }
}

// The output as lines of pixels with equidistant windows, divided into tiles of nearly equal numbers of rows. The last
// tile of a line ends with the line and may repeat rows of the previous one.
struct Lines {
    int length, count;
    int pitch;        // pixels per output row in a line; more than columns if windows cross the ends of rows
    int tiles, rows;  // tiles per line, rows per tile
    ptrdiff_t line_step, pixel_step;  // bytes between windows in the map
};

int tiles_of(ptrdiff_t pixels) { return static_cast<int>(ceil_div(pixels, kTileRows)); }

Lines lines_of(const BinaryConvRun& run) {
    const ptrdiff_t row_step = run.conv->stride_h * run.row_bytes, pixel_step = run.conv->stride_w * run.pixel_bytes;
    Lines lines = {run.columns, run.rows, run.columns, 0, 0, row_step, pixel_step};
    if (row_step % pixel_step == 0) {
        const ptrdiff_t pitch = row_step / pixel_step, length = (run.rows - 1) * pitch + run.columns;
        if (tiles_of(length) < ptrdiff_t(run.rows) * tiles_of(run.columns)) {
            lines.length = static_cast<int>(length);
            lines.count = 1;
            lines.pitch = static_cast<int>(pitch);
        }
    }
    lines.tiles = tiles_of(lines.length);
    lines.rows = ceil_div(lines.length, lines.tiles);
    return lines;
}

}  // namespace
}  // namespace bmx
