// bmx-classify: prints the most probable classes of images, as `bmx-melius predict` and Session.classify do.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "files.h"
#include "image_file.h"
#include "network.h"

namespace classify {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage =
    "usage: bmx-classify [options] PREFIX IMAGE...\n"
    "\n"
    "Print the most probable classes of JPEG and PNG files. PREFIX is that of a packed network, which bmx-melius "
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

void print_text(const Network& network, const std::string& image, const std::vector<Class>& classes) {
    std::printf("%s\n", image.c_str());
    for (const Class& row : classes) {
        const std::string* name = network.name(row.number);
        const std::string label = name ? *name : std::to_string(row.number);
        std::printf("%7.2f%%  %s\n", 100 * row.probability, label.c_str());
    }
}

ordered_json json_of(const Network& network, const std::string& image, const std::vector<Class>& classes) {
    ordered_json top = ordered_json::array();
    for (const Class& row : classes) {
        const std::string* name = network.name(row.number);
        top.push_back({{"class", row.number},
                       {"name", name ? ordered_json(*name) : ordered_json()},
                       {"probability", row.probability}});
    }
    return {{"image", image}, {"top", top}};
}

// Returns the exit status: 1 if an image could not be read, which does not prevent the others from being classified.
int run(const Arguments& arguments) {
    const Network network(arguments.prefix);
    ordered_json predictions = ordered_json::array();
    int status = 0;
    for (const std::string& path : arguments.images) {
        std::vector<float> input;
        try {
            input = preprocessed(read_image(path, network.input().channels), network.input());
        } catch (const Error& error) {
            std::fprintf(stderr, "error: %s\n", error.what());
            status = 1;
            continue;
        }
        if (!arguments.save_input.empty()) {
            write_numbers(arguments.save_input, input);
        }
        const std::vector<Class> classes =
            network.classify(input, static_cast<size_t>(arguments.top), arguments.threads, path);
        if (arguments.json) {
            predictions.push_back(json_of(network, path, classes));
        } else {
            print_text(network, path, classes);
        }
    }
    if (arguments.json && !predictions.empty()) {
        const ordered_json all = {{"network", arguments.prefix}, {"predictions", predictions}};
        std::printf("%s\n", all.dump(1, ' ', false, ordered_json::error_handler_t::replace).c_str());
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
