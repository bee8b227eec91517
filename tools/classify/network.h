// A packed classifier, and what it finds in images.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bmx_melius.h"
#include "description.h"

namespace classify {

struct Class {
    size_t number;
    double probability;
};

class Network {
  public:
    // The files PREFIX-symbol.json and PREFIX-0000.params. Throws Error.
    explicit Network(const std::string& prefix);

    const InputSpec& input() const { return description_.input; }

    // Returns the name of a class, or null if the files have no names.
    const std::string* name(size_t number) const {
        return description_.class_names ? &(*description_.class_names)[number] : nullptr;
    }

    // Returns the `top` most probable classes, the most probable one first, of equal ones that with the lower number.
    // `input` is (1, channels, size, size). Throws Error with `image`, the name of the image.
    std::vector<Class> classify(const std::vector<float>& input, size_t top, int threads,
                                const std::string& image) const;

  private:
    void require_classifier();

    std::string prefix_;
    Description description_;
    std::unique_ptr<bmx_program, decltype(&bmx_program_destroy)> program_;
    int64_t shape_[4] = {};
    std::vector<size_t> sizes_;  // elements of each output of the program
};

}  // namespace classify
