// bmx-classify: prints the most probable classes of images, as `bmx-melius predict` and Session.classify do.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "bmx_melius.h"
#include "classifier/json_reader.h"
#include "files.h"
#include "image_file.h"

namespace classify {
namespace {

constexpr const char* kUsage =
    "usage: bmx-classify [options] PREFIX IMAGE...\n"
    "\n"
    "Print the most probable classes of JPEG and PNG files. PREFIX belongs to a packed network, which bmx-melius "
    "convert\n"
    "writes: PREFIX-symbol.json, which also has the preprocessing and the class names, and PREFIX-0000.params.\n"
    "\n"
    "  --top K            number of classes to print for each image (default: 5)\n"
    "  --threads N        number of threads (default: one for each available core)\n"
    "  --json             print one JSON object\n"
    "  --save-input FILE  also write the input of the network for a single image to FILE, as raw float32 numbers\n"
    "  --version          print the version and the instruction sets\n"
    "\n"
    "The exit status is 0, or 1 if anything failed. After an image that cannot be read the others are still "
    "classified.\n";

struct Arguments {
    int top = 5, threads = 0;
    bool json = false, version = false, help = false;
    std::string save_input, prefix;
    std::vector<std::string> images;
};

int whole_number(const std::string& name, const std::string& text, int low, int high) {
    char* end = nullptr;
    errno = 0;
    const long number = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end || errno || number < low || number > high) {
        throw Error(name + " must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
                    ", not '" + text + "'");
    }
    return static_cast<int>(number);
}

std::string without(std::string text, const std::string& ending) {
    if (text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0) {
        text.resize(text.size() - ending.size());
    }
    return text;
}

struct Option {
    const char* name;
    bool has_value;
    void (*apply)(Arguments&, const std::string& value);
};

const Option kOptions[] = {
    {"--top", true, [](Arguments& a, const std::string& value) { a.top = whole_number("--top", value, 1, 1 << 30); }},
    {"--threads", true,
     [](Arguments& a, const std::string& value) { a.threads = whole_number("--threads", value, 1, 1024); }},
    {"--save-input", true,
     [](Arguments& a, const std::string& value) {
         if (value.empty()) {
             throw Error("--save-input needs the name of a file");
         }
         a.save_input = value;
     }},
    {"--json", false, [](Arguments& a, const std::string&) { a.json = true; }},
    {"--version", false, [](Arguments& a, const std::string&) { a.version = true; }},
    {"--help", false, [](Arguments& a, const std::string&) { a.help = true; }},
    {"-h", false, [](Arguments& a, const std::string&) { a.help = true; }},
};

const Option& option_of(const std::string& name) {
    for (const Option& option : kOptions) {
        if (name == option.name) {
            return option;
        }
    }
    throw Error("unknown option " + name + "; bmx-classify --help lists the options");
}

// Sets the options, `--top 3` or `--top=3`, and returns the other words.
std::vector<std::string> parse_options(const std::vector<std::string>& words, Arguments& result) {
    std::vector<std::string> names;
    bool only_names = false;
    for (size_t i = 0; i < words.size(); i++) {
        const std::string& word = words[i];
        if (only_names || word.size() < 2 || word[0] != '-') {
            names.push_back(word);
        } else if (word == "--") {
            only_names = true;
        } else {
            const size_t equals = word.find('=');
            const Option& option = option_of(word.substr(0, equals));
            const bool has_own_value = equals != std::string::npos;
            if (has_own_value && !option.has_value) {
                throw Error(std::string(option.name) + " takes no value");
            }
            if (option.has_value && !has_own_value && i + 1 == words.size()) {
                throw Error(word + " needs a value; bmx-classify --help explains it");
            }
            option.apply(result, has_own_value ? word.substr(equals + 1) : option.has_value ? words[++i] : "");
        }
    }
    return names;
}

Arguments parse(const std::vector<std::string>& words) {
    Arguments result;
    const std::vector<std::string> names = parse_options(words, result);
    if (result.help || result.version) {
        return result;
    }
    if (names.size() < 2) {
        throw Error("give the PREFIX of a packed network and at least one image; bmx-classify --help explains them");
    }
    result.prefix = without(names[0], "-symbol.json");
    result.images.assign(names.begin() + 1, names.end());
    if (!result.save_input.empty() && result.images.size() > 1) {
        throw Error("--save-input writes the input of a single image, but there are " +
                    std::to_string(result.images.size()));
    }
    return result;
}

// Writes to a temporary name that is then renamed, so that an incomplete file is never visible.
void write_numbers(const std::string& path, const std::vector<float>& numbers) {
    const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
    std::FILE* file = std::fopen(temporary.c_str(), "wb");
    bool complete = file && std::fwrite(numbers.data(), sizeof(float), numbers.size(), file) == numbers.size();
    complete = (!file || std::fclose(file) == 0) && complete;
    if (!complete || std::rename(temporary.c_str(), path.c_str())) {
        const std::string reason = std::strerror(errno);
        std::remove(temporary.c_str());
        throw Error(path + ": cannot write it: " + reason);
    }
}

// A class, its name, or null if the files have no names, and its probability.
struct Row {
    size_t number;
    const char* name;
    double probability;
};

void print_text(const std::string& image, const std::vector<Row>& rows) {
    std::printf("%s\n", image.c_str());
    for (const Row& row : rows) {
        const std::string label = row.name ? row.name : std::to_string(row.number);
        std::printf("%7.2f%%  %s\n", 100 * row.probability, label.c_str());
    }
}

// Returns a string of JSON. What is not UTF-8, in the name of a file, becomes U+FFFD.
std::string json_text(const std::string& text) {
    std::string result = "\"";
    const char* const end = text.data() + text.size();
    for (const char* next = text.data(); next < end;) {
        const size_t bytes = bmx::bytes_of_character(next, end);
        const auto first = static_cast<unsigned char>(*next);
        if (bytes == 0) {
            result += "\\ufffd";
        } else if (first < 0x20 || first == '"' || first == '\\') {
            char escaped[7];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", first);
            result += escaped;
        } else {
            result.append(next, bytes);
        }
        next += std::max<size_t>(bytes, 1);
    }
    return result + "\"";
}

std::string json_of(const std::string& image, const std::vector<Row>& rows) {
    std::string top;
    for (const Row& row : rows) {
        char probability[32];
        std::snprintf(probability, sizeof probability, "%.17g", row.probability);
        top += std::string(top.empty() ? "" : ",") + "\n    {\"class\": " + std::to_string(row.number) +
               ", \"name\": " + (row.name ? json_text(row.name) : "null") + ", \"probability\": " + probability + "}";
    }
    return "  {\n   \"image\": " + json_text(image) + ",\n   \"top\": [" + top + "\n   ]\n  }";
}

class Network {
  public:
    explicit Network(const std::string& prefix)
        : classifier_(bmx_classifier_load(prefix.c_str(), BMX_EXACT), bmx_classifier_destroy) {
        if (!classifier_ || bmx_classifier_input_shape(classifier_.get(), shape_)) {
            throw Error(bmx_last_error());
        }
        if (shape_[1] != 1 && shape_[1] != 3) {
            throw Error(prefix + " takes images of " + std::to_string(shape_[1]) + " channels, not JPEG and PNG files");
        }
    }

    // Returns the most probable classes. Throws Error with the name of the image.
    std::vector<Row> classify(const std::string& path, const Arguments& arguments) const {
        const Image image = read_image(path, shape_[1]);
        if (!arguments.save_input.empty()) {
            write_numbers(arguments.save_input, input(image, path));
        }
        const size_t top = static_cast<size_t>(arguments.top);
        const size_t most = std::min(top, bmx_classifier_classes(classifier_.get()));
        std::vector<size_t> numbers(most);
        std::vector<double> probabilities(most);
        require(path,
                bmx_classifier_classify(classifier_.get(), image.pixels.data(), image.height, image.width,
                                        image.channels, arguments.threads, most, numbers.data(), probabilities.data()));
        std::vector<Row> rows;
        for (size_t i = 0; i < most; i++) {
            rows.push_back({numbers[i], bmx_classifier_class_name(classifier_.get(), numbers[i]), probabilities[i]});
        }
        return rows;
    }

  private:
    std::vector<float> input(const Image& image, const std::string& path) const {
        std::vector<float> result(static_cast<size_t>(shape_[1] * shape_[2] * shape_[3]));
        require(path, bmx_classifier_preprocess(classifier_.get(), image.pixels.data(), image.height, image.width,
                                                image.channels, result.data()) == 0);
        return result;
    }

    static void require(const std::string& path, bool success) {
        if (!success) {
            throw Error(path + ": " + bmx_last_error());
        }
    }

    std::unique_ptr<bmx_classifier, decltype(&bmx_classifier_destroy)> classifier_;
    int64_t shape_[4] = {};
};

// Returns the exit status: 1 if an image could not be classified, which does not prevent the others from being
// classified.
int run(const Arguments& arguments) {
    const Network network(arguments.prefix);
    std::string predictions;  // printed at the end, so that what is printed is a whole object
    int status = 0;
    for (const std::string& path : arguments.images) {
        std::vector<Row> rows;
        try {
            rows = network.classify(path, arguments);
        } catch (const Error& error) {
            std::fprintf(stderr, "error: %s\n", error.what());
            status = 1;
            continue;
        } catch (const std::bad_alloc&) {
            std::fprintf(stderr, "error: %s cannot be classified: out of memory\n", path.c_str());
            status = 1;
            continue;
        }
        if (arguments.json) {
            predictions += (predictions.empty() ? "" : ",\n") + json_of(path, rows);
        } else {
            print_text(path, rows);
        }
    }
    if (!predictions.empty()) {
        std::printf("{\n \"network\": %s,\n \"predictions\": [\n%s\n ]\n}\n", json_text(arguments.prefix).c_str(),
                    predictions.c_str());
    }
    if (std::fflush(stdout)) {
        throw Error(std::string("the result cannot be written to standard output: ") + std::strerror(errno));
    }
    return status;
}

}  // namespace
}  // namespace classify

int main(int count, char** words) {
    try {
        const classify::Arguments arguments = classify::parse({words + 1, words + count});
        if (arguments.help) {
            std::printf("%s", classify::kUsage);
            return 0;
        }
        if (arguments.version) {
            const char* names = bmx_available_isas();
            std::printf("bmx-classify %s (%s)\n", bmx_version(), names ? names : bmx_last_error());
            return 0;
        }
        return classify::run(arguments);
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "error: out of memory\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
    }
    return 1;
}
