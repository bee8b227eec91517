// Kernels of 8-bit layers with vectors of 128 bits (NEON, WebAssembly), in terms of two classes.
//
// Lanes has the vectors and what is computed with them: Integers (4 of 32 bits), Shorts (8 of 16 bits), Bytes (16) and
// Reals (4), see arm/int8_lanes_neon.h.
//
// Products adds products:
//   kPixels                              pixels that are computed together
//   Products(row, blocks)                for the outputs of a row
//   add<period, pixels>(block, pixel, sums)
//                                        the sums of some pixels and of the four vectors of a block
#pragma once
#include "kernels/common/int8_orders.h"
#include "kernels/common/short_vectors.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kVectorLanes = 4, kBlockVectors = kInt8Lanes / kVectorLanes;

// Rescaling of four numbers, with 32 bits.
template <class Lanes>
struct NarrowVector {
    typename Lanes::Integers low, high, factor, summand;
    typename Lanes::Shift shift;

    explicit NarrowVector(const Rescaling& r)
        : low(Lanes::load(r.low)),
          high(Lanes::load(r.high)),
          factor(Lanes::load(r.factor)),
          summand(Lanes::load(r.summand)),
          shift(Lanes::right_by(r.shift)) {}

    typename Lanes::Integers operator()(typename Lanes::Integers n) const {
        const typename Lanes::Integers limited = Lanes::min(Lanes::max(n, low), high);
        return Lanes::shifted(Lanes::add(Lanes::multiply(limited, factor), summand), shift);
    }
};

// --- rescaling -----------------------------------------------------------------------------------

// Rescales 16 channels of integers to bytes. Rescaling keeps the order of numbers, or reverses it where the factor is
// negative: the largest result comes from the largest or, if `kFlips`, where ~n replaces n, from the smallest number of
// a window. kWindow: its size, or 0.
template <class Lanes, int kWindow, bool kFlips>
void rescale_integers(const RescaleRow& row, const int16_t* x, int channel) {
    using Shorts = typename Lanes::Shorts;
    using Integers = typename Lanes::Integers;
    const Rescaling r = row.rescaling.from(channel);
    Shorts low[2], high[2], flips[2];  // saturated, as the numbers are
    Integers factor[4], summand[4];
    unrolled<4>([&](auto v) BMX_INLINED {
        factor[v] = Lanes::load(r.factor + v * kVectorLanes);
        summand[v] = Lanes::load(r.summand + v * kVectorLanes);
    });
    unrolled<2>([&](auto v) BMX_INLINED {
        const int first = v * 8, second = first + kVectorLanes;
        low[v] = Lanes::saturated(Lanes::load(r.low + first), Lanes::load(r.low + second));
        high[v] = Lanes::saturated(Lanes::load(r.high + first), Lanes::load(r.high + second));
        flips[v] = Lanes::signs(factor[2 * v], factor[2 * v + 1]);
    });
    const typename Lanes::Shift shift = Lanes::right_by(r.shift);
    ptrdiff_t window[kWindow + 1] = {};
    unrolled<kWindow>([&](auto tap) BMX_INLINED { window[tap] = row.window[tap]; });
    const int16_t* from = x + channel;
    uint8_t* y = row.y + channel;
    for (int i = 0; i < row.pixels; ++i, from += row.step, y += row.y_pixel) {
        Shorts n[2], results[2];
        const auto visit = [&](const int16_t* pixel, bool is_first) BMX_INLINED {
            unrolled<2>([&](auto v) BMX_INLINED {
                const Shorts loaded = Lanes::load(pixel + v * 8);
                const Shorts number = kFlips ? Lanes::exclusive_or(loaded, flips[v]) : loaded;
                n[v] = is_first ? number : Lanes::max(n[v], number);
            });
        };
        if constexpr (kWindow > 0) {
            unrolled<kWindow>([&](auto tap) BMX_INLINED { visit(from + window[tap], tap == 0); });
        } else {
            visit(from + row.window[0], true);
            for (int tap = 1; tap < row.window_size; ++tap) {
                visit(from + row.window[tap], false);
            }
        }
        unrolled<2>([&](auto v) BMX_INLINED {
            const Shorts number = kFlips ? Lanes::exclusive_or(n[v], flips[v]) : n[v];
            const Shorts limited = Lanes::min(Lanes::max(number, low[v]), high[v]);
            const auto rescaled = [&](Integers half, int part) BMX_INLINED {
                return Lanes::shifted(Lanes::add(Lanes::multiply(half, factor[part]), summand[part]), shift);
            };
            results[v] = Lanes::narrow(rescaled(Lanes::low_half(limited), 2 * v),
                                       rescaled(Lanes::high_half(limited), 2 * v + 1));
        });
        Lanes::store(y, Lanes::narrow(results[0], results[1]));
    }
}

template <class Lanes, int kWindow>
void rescale_integers(const RescaleRow& row, const int16_t* x, int channel, bool flips) {
    flips ? rescale_integers<Lanes, kWindow, true>(row, x, channel)
          : rescale_integers<Lanes, kWindow, false>(row, x, channel);
}

template <class Lanes>
void rescale_at_once(const RescaleRow& row) {
    const Rescaling& r = row.rescaling;
    bool suits = row.type == DataType::i16 && r.low && !row.scale;
    for (int c = 0; suits && c < row.channels; ++c) {  // whether limits may be saturated
        suits = r.low[c] <= INT16_MAX && r.high[c] >= INT16_MIN;
    }
    const int16_t* x = static_cast<const int16_t*>(row.x);
    int c = rescale_floats(row);
    for (; suits && c + kInt8Lanes <= row.channels; c += kInt8Lanes) {
        bool flips = false;
        for (int lane = 0; lane < kInt8Lanes && row.window_size > 1; ++lane) {
            flips = flips || r.factor[c + lane] < 0;
        }
        switch (row.window_size) {
            case 1:
                rescale_integers<Lanes, 1, false>(row, x, c);
                break;
            case 4:
                rescale_integers<Lanes, 4>(row, x, c, flips);
                break;
            default:
                rescale_integers<Lanes, 0>(row, x, c, flips);
        }
    }
    if (c < row.channels) {
        rescale_row(rest_of(row, c));
    }
}

// Rescales planes, four pixels at once. Limiting before rounding gives the same integers; NaN becomes the largest.
template <class Lanes>
void rescale_planes_at_once(const RescalePlanes& row) {
    constexpr int kWord = 4;
    const Rescaling& r = row.rescaling;
    const bool suits = row.y_pixel == kWord && row.channels <= kWord && r.low;
    const int whole = suits ? row.pixels / kVectorLanes * kVectorLanes : 0;
    const typename Lanes::Shift shift = Lanes::right_by(r.shift);
    for (int i = 0; i < whole; i += kVectorLanes) {
        typename Lanes::Integers words = Lanes::splat(0);
        for (int c = row.channels; c-- > 0;) {
            typename Lanes::Reals x = Lanes::load(row.x + c * row.plane + i);
            if (row.scale) {
                x = Lanes::multiply_add(x, row.scale[c], row.shift[c]);
            }
            const typename Lanes::Integers n =
                Lanes::nearest(x, static_cast<float>(r.low[c]), static_cast<float>(r.high[c]));
            const typename Lanes::Integers product = Lanes::multiply(n, Lanes::splat(r.factor[c]));
            const typename Lanes::Integers byte =
                Lanes::shifted(Lanes::add(product, Lanes::splat(r.summand[c])), shift);
            words = Lanes::before(byte, words);
        }
        Lanes::store(row.y + i * kWord, words);
    }
    if (whole < row.pixels) {
        rescale_planes(rest_of(row, whole));
    }
}

// --- pooling -------------------------------------------------------------------------------------

template <class Lanes>
void max_at_once(const MaxRow& row) {
    constexpr int kVectors = 4, kChannels = 2 * kVectorLanes * kVectors;
    const int whole = row.channels / kChannels * kChannels;
    for (int i = 0; i < row.pixels; ++i) {
        for (int c = 0; c < whole; c += kChannels) {
            const int16_t* from = row.x + i * row.step + c;
            typename Lanes::Shorts best[kVectors];
            unrolled<kVectors>([&](auto v) BMX_INLINED { best[v] = Lanes::load(from + row.window[0] + v * 8); });
            for (int tap = 1; tap < row.window_size; ++tap) {
                unrolled<kVectors>([&](auto v) BMX_INLINED {
                    best[v] = Lanes::max(best[v], Lanes::load(from + row.window[tap] + v * 8));
                });
            }
            unrolled<kVectors>([&](auto v) BMX_INLINED { Lanes::store(row.y + i * row.y_pixel + c + v * 8, best[v]); });
        }
    }
    if (whole < row.channels) {
        max_row(rest_of(row, whole));
    }
}

// --- convolution ---------------------------------------------------------------------------------

// Stores the results of one block and pixel.
template <class Lanes>
[[gnu::always_inline]] inline void store_block(const Int8Row& row, const Int8Blocks& blocks, const OutputOrder& order,
                                               int block, int pixel, const typename Lanes::Integers* results) {
    const int left = blocks.outputs - block * kInt8Lanes;
    const ptrdiff_t at = pixel * row.y_pixel + blocks.first_output + block * kInt8Lanes;
    if (row.result == Int8Result::floats) {
        int32_t lanes[kInt8Lanes];
        for (int v = 0; v < kBlockVectors; ++v) {
            Lanes::store(lanes + v * kVectorLanes, results[v]);
        }
        float* y = static_cast<float*>(row.y) + at;
        for (int output = 0; output < kInt8Lanes && output < left; ++output) {
            y[output] = static_cast<float>(lanes[order.moves ? order.bytes[output] : output]);
        }
        return;
    }
    const typename Lanes::Shorts low = Lanes::narrow(results[0], results[1]);
    const typename Lanes::Shorts high = Lanes::narrow(results[2], results[3]);
    if (row.result == Int8Result::bytes) {
        uint8_t* y = static_cast<uint8_t*>(row.y) + at;
        typename Lanes::Bytes bytes = Lanes::narrow(low, high);
        if (order.moves) {
            bytes = Lanes::looked_up(bytes, order.bytes);
        }
        if (left >= kInt8Lanes) {
            Lanes::store(y, bytes);
        } else {
            std::memcpy(y, &bytes, left);
        }
        return;
    }
    typename Lanes::Shorts parts[2] = {low, high};
    if (order.moves) {
        for (int part = 0; part < 2; ++part) {
            parts[part] = Lanes::looked_up(low, order.integers[part][0], high, order.integers[part][1]);
        }
    }
    int16_t* y = static_cast<int16_t*>(row.y) + at;
    if (left >= kInt8Lanes) {
        Lanes::store(y, parts[0]);
        Lanes::store(y + 8, parts[1]);
    } else {
        std::memcpy(y, parts, sizeof(int16_t) * left);
    }
}

template <class Lanes, class Products, int kPeriod, int kPixels>
[[gnu::noinline]] void convolve_pixels(const Int8Row& row, const Int8Blocks& blocks, const Products& products,
                                       const OutputOrder* orders, int pixel) {
    typename Lanes::Integers sums[kPixels][kBlockVectors];
    if (orders) {
        for (int block = 0; block < blocks.count; ++block) {
            products.template add<kPeriod, kPixels>(block, pixel, sums);
            unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
                const int lane = block * kInt8Lanes + v * kVectorLanes;
                const NarrowVector<Lanes> rescaled(blocks.rescaling.from(lane));
                unrolled<kPixels>([&](auto i) BMX_INLINED { sums[i][v] = rescaled(sums[i][v]); });
            });
            unrolled<kPixels>(
                [&](auto i) BMX_INLINED { store_block<Lanes>(row, blocks, orders[block], block, pixel + i, sums[i]); });
        }
        return;
    }
    int32_t lanes[kPixels][kInt8Blocks * kInt8Lanes];
    for (int block = 0; block < blocks.count; ++block) {
        products.template add<kPeriod, kPixels>(block, pixel, sums);
        for (int i = 0; i < kPixels; ++i) {
            for (int v = 0; v < kBlockVectors; ++v) {
                Lanes::store(lanes[i] + block * kInt8Lanes + v * kVectorLanes, sums[i][v]);
            }
        }
    }
    for (int i = 0; i < kPixels; ++i) {
        store_sums(row, blocks, pixel + i, lanes[i]);
    }
}

// Where a few pixels are left, some are computed again.
template <class Lanes, class Products, int kPeriod>
void convolve_row(const Int8Row& row, const Int8Blocks& blocks, const OutputOrder* orders) {
    constexpr int kPixels = Products::kPixels;
    const Products products(row, blocks);
    int pixel = 0;
    for (; pixel + kPixels <= row.pixels; pixel += kPixels) {
        convolve_pixels<Lanes, Products, kPeriod, kPixels>(row, blocks, products, orders, pixel);
    }
    if (row.pixels - pixel > 1 && row.pixels >= kPixels) {
        convolve_pixels<Lanes, Products, kPeriod, kPixels>(row, blocks, products, orders, row.pixels - kPixels);
        return;
    }
    for (; pixel < row.pixels; ++pixel) {
        convolve_pixels<Lanes, Products, kPeriod, 1>(row, blocks, products, orders, pixel);
    }
}

template <class Lanes, class Products>
void convolve_with(const Int8Row& row) {
    for (const Int8Blocks* blocks = row.blocks; blocks < row.blocks + row.blocks_count; ++blocks) {
        const OutputOrder all[kInt8Blocks] = {{*blocks, 0}, {*blocks, 1}, {*blocks, 2}, {*blocks, 3}, {*blocks, 4}};
        const OutputOrder* orders = blocks->rescaling.low && keeps_blocks(*blocks) ? all : nullptr;
        switch (blocks->period) {
            case 1:
                convolve_row<Lanes, Products, 1>(row, *blocks, orders);
                break;
            case 2:
                convolve_row<Lanes, Products, 2>(row, *blocks, orders);
                break;
            case 4:
                convolve_row<Lanes, Products, 4>(row, *blocks, orders);
                break;
            default:
                convolve_row<Lanes, Products, kInt8Period>(row, *blocks, orders);
        }
    }
}

template <class Lanes, class Products>
const Int8Kernels& kernels_with() {
    static const Int8Kernels kernels = {shorts_at_once,
                                        rescale_at_once<Lanes>,
                                        rescale_planes_at_once<Lanes>,
                                        max_at_once<Lanes>,
                                        convolve_with<Lanes, Products>,
                                        mean_at_once,
                                        count_thresholds,
                                        1};
    return kernels;
}

}  // namespace
}  // namespace bmx
