#include "kernels/x86/tiles_amx.h"
#include "peaks/peak_loop.h"

namespace bmx {

// Four sums; from the cache, the four operands are loaded for each four products.
double tiles_amx(Operands operands, double seconds) {
    alignas(64) static uint8_t memory[4][kTileBytes];
    configure_tiles(kTileRows);
    const auto products = [&](long iterations) {
        for (long i = 0; i < iterations; ++i) {
            if (operands == Operands::cache) {
                load_tile<4>(memory[0]);
                load_tile<5>(memory[1]);
                load_tile<6>(memory[2]);
                load_tile<7>(memory[3]);
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

}  // namespace bmx
