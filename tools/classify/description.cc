#include "description.h"

#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "files.h"

namespace classify {
namespace {

using nlohmann::json;

constexpr const char* kOperator = "bmx_melius_packed";
constexpr const char* kEmbedded = "bmx_melius_description";  // attribute of the symbol: ["str", JSON text]
constexpr int64_t kMaxSize = 1 << 13, kMaxResize = 1 << 14;  // as in bmx_melius/vision/preprocessing.py

// Runs a function that reads JSON; `what` is wrong if it has another structure.
template <class Function>
auto parsed(const std::string& path, const std::string& what, const Function& function) {
    try {
        return function();
    } catch (const json::exception& error) {
        throw Error(path + ": " + what + " is damaged (" + error.what() + "); convert the network again");
    }
}

// Returns the number of the program's output that is the only output of the symbol.
size_t output_of(const json& symbol, const std::string& path) {
    size_t packed = symbol.at("nodes").size(), operators = 0;
    for (size_t i = 0; i < symbol.at("nodes").size(); i++) {
        const std::string kind = symbol.at("nodes").at(i).at("op");
        if (kind != "null") {
            operators++;
            packed = kind == kOperator ? i : packed;
        }
    }
    const json& heads = symbol.at("heads");
    if (operators != 1 || packed == symbol.at("nodes").size() || heads.size() != 1) {
        throw Error(path + " is not a classifier in one packed operator: it has " + std::to_string(operators) +
                    " operators and " + std::to_string(heads.size()) + " outputs");
    }
    if (heads.at(0).at(0).get<size_t>() != packed) {
        throw Error(path + " has an output that its packed operator does not compute");
    }
    return heads.at(0).at(1).get<size_t>();
}

std::vector<float> numbers_of(const json& values, size_t count, bool positive, const char* name) {
    const std::vector<double> numbers = values.get<std::vector<double>>();
    for (double number : numbers) {
        if (!std::isfinite(number) || (positive && number <= 0)) {
            throw Error(std::string(name) + " must consist of " + (positive ? "positive" : "finite") + " numbers");
        }
    }
    if (numbers.size() != count) {
        throw Error(std::string(name) + " needs one value for each of the " + std::to_string(count) + " channels");
    }
    return {numbers.begin(), numbers.end()};
}

// The same conditions as in bmx_melius/vision/preprocessing.py.
InputSpec input_of(const json& fields) {
    InputSpec spec;
    spec.channels = fields.at("channels").get<int64_t>();
    spec.size = fields.at("size").get<int64_t>();
    if (spec.channels != 1 && spec.channels != 3) {
        throw Error("an input must have 3 (RGB) or 1 (gray) channels, not " + std::to_string(spec.channels));
    }
    if (spec.size < 1 || spec.size > kMaxSize) {
        throw Error("the input size must be 1 to " + std::to_string(kMaxSize) + ", not " + std::to_string(spec.size));
    }
    if (!fields.at("resize").is_null()) {
        spec.resize = fields.at("resize").get<int64_t>();
        if (*spec.resize < spec.size || *spec.resize > kMaxResize) {
            throw Error("resize must be at least the input size and at most " + std::to_string(kMaxResize) + ", not " +
                        std::to_string(*spec.resize));
        }
    }
    spec.mean = numbers_of(fields.at("mean"), static_cast<size_t>(spec.channels), false, "mean");
    spec.std = numbers_of(fields.at("std"), static_cast<size_t>(spec.channels), true, "std");
    return spec;
}

}  // namespace

Description read_description(const std::string& prefix) {
    Description result;
    const std::string symbol_file = prefix + "-symbol.json", summary_file = prefix + "-summary.json";
    const json symbol = parsed(symbol_file, "the symbol", [&] { return json::parse(read_file(symbol_file)); });
    result.output = parsed(symbol_file, "the symbol", [&] { return output_of(symbol, symbol_file); });
    std::string text;
    if (symbol.contains("attrs") && symbol["attrs"].contains(kEmbedded)) {
        result.source = symbol_file;
        text =
            parsed(symbol_file, "the description", [&] { return symbol["attrs"][kEmbedded].at(1).get<std::string>(); });
    } else if (access(summary_file.c_str(), F_OK) == 0) {  // files of versions before 0.2 have it there
        result.source = summary_file;
        text = read_file(summary_file);
    }
    const json fields =
        text.empty() ? json::object() : parsed(result.source, "the description", [&] { return json::parse(text); });
    if (!fields.contains("input") || fields["input"].is_null()) {
        throw Error(prefix + " has no description of the preprocessing of images: convert the network again with it");
    }
    parsed(result.source, "the description", [&] {
        try {
            result.input = input_of(fields["input"]);
        } catch (const Error& error) {
            throw Error(result.source + ": " + error.what());
        }
        if (fields.contains("class_names") && !fields["class_names"].is_null()) {
            result.class_names = fields["class_names"].get<std::vector<std::string>>();
        }
        return 0;
    });
    return result;
}

}  // namespace classify
