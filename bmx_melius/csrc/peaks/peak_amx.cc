#include "kernels/tiles_amx.h"
#include "peaks/peak_loop.h"

namespace bmx {

double peak_tiles_amx(double seconds) {
    configure_tiles(kTileRows);
    const double rate = fastest_rate(seconds, 4 * 16. * 16 * 64, [](long iterations) {
        for (long i = 0; i < iterations; ++i) {
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 5, 6);
            _tile_dpbusd(2, 4, 7);
            _tile_dpbusd(3, 5, 7);
        }
    });
    _tile_release();
    return rate;
}

}  // namespace bmx
