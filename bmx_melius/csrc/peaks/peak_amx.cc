#include "kernels/x86/tiles_amx.h"
#include "peaks/peak_loop.h"

namespace bmx {
namespace {

// Two tiles of each factor: rows are in the first two, lanes in the others.
struct alignas(64) Factors {
    uint8_t bytes[4][kTileBytes];

    // Random bytes, of which the masks are kept.
    Factors(uint8_t rows, uint8_t lanes) {
        uint32_t number = 1;
        for (int tile = 0; tile < 4; ++tile) {
            for (uint8_t& byte : bytes[tile]) {
                number = number * 1664525 + 1013904223;
                byte = static_cast<uint8_t>(number >> 24) & (tile < 2 ? rows : lanes);
            }
        }
    }
};

// Four sums; from the cache, the four operands are loaded for each four products.
double rate_of_products(const Factors& factors, Operands operands, double seconds) {
    configure_tiles(kTileRows);
    const auto load = [&] {
        load_tile<4>(factors.bytes[0]);
        load_tile<5>(factors.bytes[1]);
        load_tile<6>(factors.bytes[2]);
        load_tile<7>(factors.bytes[3]);
    };
    load();
    const auto products = [&](long iterations) {
        for (long i = 0; i < iterations; ++i) {
            if (operands == Operands::cache) {
                load();
            }
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 5, 6);
            _tile_dpbusd(2, 4, 7);
            _tile_dpbusd(3, 5, 7);
        }
    };
    const double rate = fastest_rate(seconds, 4 * 16. * 16 * 64, products, 1000);
    _tile_release();
    return rate;
}

}  // namespace

// The rate depends on the operands, because the clock depends on the power that products take.
double zero_tiles_amx(Operands operands, double seconds) { return rate_of_products({0, 0}, operands, seconds); }
double binary_tiles_amx(Operands operands, double seconds) { return rate_of_products({1, 4}, operands, seconds); }
double byte_tiles_amx(Operands operands, double seconds) { return rate_of_products({255, 255}, operands, seconds); }

}  // namespace bmx
