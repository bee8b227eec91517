#include "classifier/description.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "classifier/json_reader.h"
#include "program/error.h"
#include "program/file.h"

namespace bmx {
namespace {

constexpr const char* kOperator = "bmx_melius_packed";
constexpr const char* kEmbedded = "bmx_melius_description";  // attribute of the symbol: ["str", JSON text]
constexpr int64_t kMaxSize = 1 << 13, kMaxResize = 1 << 14, kMaxChannels = 512;  // as in bmx_melius/vision
constexpr size_t kMaxClasses = 1 << 20;  // channels of a program, as in bmx_melius/deployment/program/limits.py

// Calls read(reader), which reads a JSON text; `what` is the text in errors.
template <class Read>
void read_json(const std::string& text, const std::string& name, const char* what, const Read& read) {
    check_bytes(name, text.size(), kMaxTextBytes);
    JsonReader reader(text);
    try {
        read(reader);
        reader.end();
    } catch (const Error& error) {
        throw Error(name + ": " + what + " is damaged (" + error.what() + "); convert the network again");
    }
}

struct Nodes {
    size_t count = 0, operators = 0, packed = 0;  // packed: the position of the last packed operator
    bool has_packed = false;
};

void read_node(JsonReader& reader, Nodes& nodes) {
    std::string kind;
    reader.object([&](const std::string& field) {
        if (field == "op") {
            kind = reader.string();
        } else {
            reader.skip();
        }
    });
    if (kind.empty()) {
        reader.fail("a node without an operator");
    }
    if (kind == kOperator) {
        nodes.packed = nodes.count;
        nodes.has_packed = true;
    }
    nodes.operators += kind != "null";
    nodes.count++;
}

// Returns a node and the number of its output.
std::pair<int64_t, int64_t> read_head(JsonReader& reader) {
    int64_t numbers[2] = {-1, -1};
    reader.array([&](size_t index) {
        if (index < 2) {
            numbers[index] = reader.integer();
        } else {
            reader.skip();
        }
    });
    if (numbers[0] < 0 || numbers[1] < 0) {
        reader.fail("an output is not a node");
    }
    return {numbers[0], numbers[1]};
}

std::string read_embedded(JsonReader& reader) {
    std::string kind, text;
    reader.array([&](size_t index) { (index == 0 ? kind : text) = reader.string(); });
    if (kind != "str") {
        reader.fail("the description is not a text");
    }
    return text;
}

std::vector<float> read_numbers(JsonReader& reader) {
    std::vector<float> result;
    reader.array([&](size_t index) {
        if (index == kMaxChannels) {
            reader.fail("more numbers than channels are possible");
        }
        result.push_back(static_cast<float>(reader.number()));
    });
    return result;
}

bool is_printable(const std::string& name) {
    for (size_t i = 0; i < name.size(); i++) {
        const auto at = [&](size_t place) { return static_cast<uint8_t>(name[i + place]); };  // the last one is zero
        const bool of_ascii = at(0) < 0x20 || at(0) == 0x7F, of_latin1 = at(0) == 0xC2 && at(1) < 0xA0;
        if (of_ascii || of_latin1 || name.compare(i, 3, "\u2028") == 0 || name.compare(i, 3, "\u2029") == 0) {
            return false;
        }
    }
    return true;
}

std::vector<std::string> read_names(JsonReader& reader) {
    std::vector<std::string> result;
    reader.array([&](size_t index) {
        if (index == kMaxClasses) {
            reader.fail("more names than classes are possible");
        }
        result.push_back(reader.string());
        if (!is_printable(result.back())) {
            reader.fail("the name of a class has control characters");
        }
    });
    return result;
}

InputSpec read_input(JsonReader& reader) {
    constexpr const char* kFields[] = {"channels", "mean", "resize", "size", "std"};
    InputSpec spec;
    std::set<std::string> found;
    reader.object([&](const std::string& field) {
        found.insert(field);
        if (field == "channels") {
            spec.channels = reader.integer();
        } else if (field == "mean") {
            spec.mean = read_numbers(reader);
        } else if (field == "resize") {
            spec.resize = reader.take_null() ? std::nullopt : std::optional<int64_t>(reader.integer());
        } else if (field == "size") {
            spec.size = reader.integer();
        } else if (field == "std") {
            spec.std = read_numbers(reader);
        } else {
            reader.fail("an input has no field of this name");
        }
    });
    if (!std::equal(found.begin(), found.end(), std::begin(kFields), std::end(kFields))) {
        reader.fail("an input has the fields channels, mean, resize, size and std");
    }
    return spec;
}

void check_numbers(const std::vector<float>& numbers, int64_t channels, bool positive, const std::string& name) {
    for (float number : numbers) {
        if (!std::isfinite(number) || (positive && number <= 0)) {
            throw Error(name + " must consist of " + (positive ? "positive" : "finite") + " numbers");
        }
    }
    if (numbers.size() != static_cast<size_t>(channels)) {
        throw Error(name + " needs one value for each of the " + std::to_string(channels) + " channels");
    }
}

// The same conditions as in bmx_melius/vision/preprocessing.py.
void check_input(const InputSpec& spec, const std::string& name) {
    if (spec.channels < 1 || spec.channels > kMaxChannels) {
        throw Error(name + ": an input must have 3 (RGB), 1 (gray) or up to " + std::to_string(kMaxChannels) +
                    " channels, not " + std::to_string(spec.channels));
    }
    if (spec.size < 1 || spec.size > kMaxSize) {
        throw Error(name + ": the input size must be 1 to " + std::to_string(kMaxSize) + ", not " +
                    std::to_string(spec.size));
    }
    if (spec.resize && (*spec.resize < spec.size || *spec.resize > kMaxResize)) {
        throw Error(name + ": resize must be at least the input size and at most " + std::to_string(kMaxResize) +
                    ", not " + std::to_string(*spec.resize));
    }
    check_numbers(spec.mean, spec.channels, false, name + ": mean");
    check_numbers(spec.std, spec.channels, true, name + ": std");
}

}  // namespace

PackedSymbol read_symbol(const std::string& text, const std::string& name) {
    PackedSymbol result;
    Nodes nodes;
    size_t heads = 0;
    std::pair<int64_t, int64_t> head;
    const auto read_attributes = [&](JsonReader& reader) {
        reader.object([&](const std::string& field) {
            if (field == kEmbedded) {
                result.description = read_embedded(reader);
            } else {
                reader.skip();
            }
        });
    };
    read_json(text, name, "the symbol", [&](JsonReader& reader) {
        reader.object([&](const std::string& field) {
            if (field == "nodes") {
                nodes = {};
                reader.array([&](size_t) { read_node(reader, nodes); });
            } else if (field == "heads") {
                heads = 0;
                reader.array([&](size_t) {
                    head = read_head(reader);
                    heads++;
                });
            } else if (field == "attrs") {
                read_attributes(reader);
            } else {
                reader.skip();
            }
        });
    });
    if (nodes.operators != 1 || !nodes.has_packed || heads != 1) {
        throw Error(name + " is not a classifier in one packed operator: it has " + std::to_string(nodes.operators) +
                    " operators and " + std::to_string(heads) + " outputs");
    }
    if (head.first != static_cast<int64_t>(nodes.packed)) {
        throw Error(name + " has an output that its packed operator does not compute");
    }
    result.output = static_cast<size_t>(head.second);
    return result;
}

Description read_description(const std::string& text, const std::string& name) {
    Description result;
    bool has_input = false;
    read_json(text, name, "the description", [&](JsonReader& reader) {
        reader.object([&](const std::string& field) {
            if (field == "input") {
                has_input = !reader.take_null();
                if (has_input) {
                    result.input = read_input(reader);
                }
            } else if (field == "class_names") {
                if (reader.take_null()) {
                    result.class_names.reset();
                } else {
                    result.class_names = read_names(reader);
                }
            } else {
                reader.skip();
            }
        });
    });
    if (!has_input) {
        throw Error(name + " has no description of the preprocessing of images: convert the network again with it");
    }
    check_input(result.input, name);
    return result;
}

}  // namespace bmx
