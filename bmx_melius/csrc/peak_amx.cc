#include <immintrin.h>

#include <cstdint>

#include "peak_loop.h"

namespace bmx {

double peak_tiles_amx(double seconds) {
    struct alignas(64) TileShapes {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shapes;
    asm volatile("ldtilecfg %0" : : "m"(shapes));
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
