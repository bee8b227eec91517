#include "program/structure.h"

#include <charconv>
#include <vector>

#include "program/error.h"

namespace bmx {
namespace {

std::vector<int32_t> numbers_of(const std::string& text) {
    std::vector<int32_t> numbers;
    const char *next = text.data(), *const end = next + text.size();
    while (true) {
        int32_t number;
        const auto [stop, error] = std::from_chars(next, end, number);
        if (error != std::errc() || (stop != end && *stop != ' ')) {
            throw Error("it is not a list of numbers of 32 bits");
        }
        numbers.push_back(number);
        if (stop == end) {
            return numbers;
        }
        next = stop + 1;
    }
}

}  // namespace

Program read_structure(const std::string& text) {
    try {
        const std::vector<int32_t> words = numbers_of(text);
        return Program::from_structure(words.data(), words.size());
    } catch (const Error& error) {
        throw Error(std::string("the attribute structure is damaged: ") + error.what());
    }
}

}  // namespace bmx
