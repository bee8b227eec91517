// Measures the peaks of an instruction set in two threads at once: peaks_test NAME. There must be one of each kind.
// Built with the thread sanitizer it finds data races; with emulated tiles, their use without the permission.
#include <cstdio>
#include <thread>

#include "kernel_tables.h"
#include "peaks/peak.h"

int main(int argc, char** argv) {
    if (argc != 2) {
        std::printf("usage: peaks_test NAME\n");
        return 2;
    }
    const bmx::InstructionSet& set = require_instruction_set(argv[1]);
    std::vector<bmx::Peak> here, there;
#ifdef __wasm__  // has no threads
    there = bmx::measure_peaks(set, 0.01);
    here = bmx::measure_peaks(set, 0.01);
#else
    std::thread other([&] { there = bmx::measure_peaks(set, 0.01); });
    here = bmx::measure_peaks(set, 0.01);
    other.join();
#endif
    if (here.empty() || here.size() != there.size()) {
        std::printf("there are %zu and %zu peaks\n", here.size(), there.size());
        return 1;
    }
    for (const bmx::Peak& peak : here) {
        if (!(peak.in_registers > 0 && peak.in_cache > 0)) {
            std::printf("%s has no rate\n", peak.method);
            return 1;
        }
    }
    for (bmx::MacKind kind : {bmx::MacKind::binary, bmx::MacKind::floats, bmx::MacKind::int8}) {
        if (!(bmx::best_rate(here, kind) > 0)) {
            std::printf("there is no peak of kind %d\n", static_cast<int>(kind));
            return 1;
        }
    }
    return 0;
}
