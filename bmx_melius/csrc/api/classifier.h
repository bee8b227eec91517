// A packed network that classifies images.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "api/engine.h"
#include "classifier/description.h"
#include "classifier/pixels.h"

namespace bmx {

struct Class {
    size_t number;
    double probability;
};

// Thread-safe.
class Classifier {
  public:
    // Errors name the network and its files by these names.
    struct Names {
        std::string network, symbol, parameters, description;
    };

    // `words`: the program of the network, of which the output with the number `output` has the scores. Throws Error
    // unless it classifies images of the description.
    Classifier(Names names, Description description, size_t output, const std::vector<int32_t>& words,
               Precision precision);

    size_t classes() const { return sizes_[output_]; }
    const Description& description() const { return description_; }
    const Shape& input_shape() const { return shape_; }  // (1, channels, size, size)

    // Returns the `top` most probable classes, the most probable class first; equally probable classes by number.
    // threads: see threads_of_run. Throws Error.
    std::vector<Class> classify(const ImageView& image, size_t top, int threads) const;

  private:
    std::vector<float> scores(const ImageView& image, int threads) const;

    const Names names_;
    const Description description_;
    const size_t output_;
    const std::unique_ptr<const Engine> engine_;
    const Shape shape_;
    std::vector<size_t> sizes_;  // elements of each output of the program
};

// Loads PREFIX-symbol.json and PREFIX-0000.params, and PREFIX-summary.json if the former does not describe the network.
// Throws Error.
Classifier load_classifier(const std::string& prefix, Precision precision);

// Returns the engine of a program in a file. Throws Error, which begins with the name of the file.
std::unique_ptr<const Engine> engine_in_file(const std::vector<int32_t>& words, Precision precision,
                                             const std::string& file);

}  // namespace bmx
