// Permission to use the emulated tiles, which Linux gives for a processor's only on request. Without it their
// configuration ends the program, as an instruction for tiles does there.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace bmx {

inline std::atomic<bool> emulated_tiles_permitted{false};

inline bool request_emulated_tiles() { return emulated_tiles_permitted = true; }

inline void require_emulated_tiles() {
    if (!emulated_tiles_permitted) {
        std::fprintf(stderr, "tiles are used without the permission of the operating system\n");
        std::abort();
    }
}

}  // namespace bmx
