// Fuzzer of PREFIX-symbol.json and of descriptions of networks, as bmx_classifier_load and bmx_classifier_load_memory
// read them, and of the preprocessing that a description asks for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "classifier/description.h"
#include "fuzz/program_runs.h"
#include "program/error.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace {

constexpr int64_t kMaxSide = 64, kMaxChannels = 8;  // of the inputs that are computed; larger inputs take too long
constexpr const char* kPieces[] = {"{",          "}",        "[",       "]",       ",",
                                   ":",          "\"",       "\\",      "\\u0041", "\\ud83d\\ude00",
                                   "\\ud800",    "null",     "true",    "-",       "0",
                                   "1e999",      "-0.5e3",   "8192",    "16384",   "513",
                                   "\"input\":", "\"op\":",  "\x9b",    "\u2028",  "\"heads\"",
                                   "\"str\"",    "\"size\"", "{\"a\":", "[[[[[[",  "]]]]"};

// Calls read(), which may refuse the text.
template <class Read>
void try_to(const Read& read) {
    try {
        read();
    } catch (const bmx::Error& error) {
        if (std::strchr(error.what(), '\n')) {
            fuzzing::fail("a message of several lines");
        }
    }
}

void describe(const std::string& text) {
    const bmx::Description found = bmx::read_description(text, "description");
    for (const std::string& name : found.class_names.value_or(std::vector<std::string>())) {
        if (std::any_of(name.begin(), name.end(), [](char letter) { return static_cast<uint8_t>(letter) < ' '; })) {
            fuzzing::fail("a name with control characters");
        }
    }
    const bmx::InputSpec& spec = found.input;
    if (spec.size > kMaxSide || spec.channels > kMaxChannels) {
        return;
    }
    for (int64_t channels : {int64_t{1}, int64_t{3}, spec.channels}) {
        const int64_t height = 5, width = 2 * spec.size;
        const std::vector<uint8_t> pixels(static_cast<size_t>(height * width * channels), 200);
        std::vector<float> input(static_cast<size_t>(spec.channels * spec.size * spec.size));
        try_to([&] { bmx::preprocess({pixels.data(), height, width, channels}, spec, input.data()); });
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(data, data + size);
    try_to([&] {
        const bmx::PackedSymbol symbol = bmx::read_symbol(text, "symbol");
        if (symbol.description) {
            describe(*symbol.description);
        }
    });
    try_to([&] { describe(text); });
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    const char* const piece = kPieces[seed / 4 % (sizeof kPieces / sizeof *kPieces)];
    const size_t length = std::strlen(piece), place = size ? seed / 512 % size : 0;
    if (seed % 4 == 0 || size + length > most) {
        return LLVMFuzzerMutate(data, size, most);
    }
    if (seed % 4 == 1) {  // replace bytes
        const size_t replaced = std::min(length, size - place);
        std::memcpy(data + place, piece, replaced);
        return size;
    }
    std::memmove(data + place + length, data + place, size - place);
    std::memcpy(data + place, piece, length);
    return size + length;
}
