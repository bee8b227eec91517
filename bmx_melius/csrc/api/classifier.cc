#include "api/classifier.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "program/container.h"
#include "program/error.h"
#include "program/file.h"
#include "threads/float_environment.h"

namespace bmx {

std::unique_ptr<const Engine> engine_in_file(const std::vector<int32_t>& words, Precision precision,
                                             const std::string& file) {
    try {
        return std::make_unique<const Engine>(words.data(), words.size(), precision);
    } catch (const Error& error) {
        throw Error(file + ": " + error.what());
    }
}

Classifier::Classifier(Names names, Description description, size_t output, const std::vector<int32_t>& words,
                       Precision precision)
    : names_(std::move(names)),
      description_(std::move(description)),
      output_(output),
      engine_(engine_in_file(words, precision, names_.parameters)),
      shape_({1, description_.input.channels, description_.input.size, description_.input.size}) {
    const Program& program = engine_->program();
    if (program.inputs().size() != 1 || output_ >= program.outputs().size()) {
        throw Error(names_.symbol + " and " + names_.parameters +
                    " are not from the same conversion of a classifier: convert the network again");
    }
    std::vector<Value> values;
    try {
        values = program.infer(check_shapes(program, {shape_}).maps);
    } catch (const Error& error) {
        throw Error(names_.network + ": " + error.what());
    }
    for (int value : program.outputs()) {
        const Shape shape = shape_of(values[value], 1);
        const int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
        if (sizes_.size() == output_ && *std::max_element(shape.begin(), shape.end()) != size) {
            throw Error(names_.network + " is not a classifier: its output has " + std::to_string(size) +
                        " values in several dimensions, not one value for each class");
        }
        sizes_.push_back(static_cast<size_t>(size));
    }
    if (description_.class_names && description_.class_names->size() != classes()) {
        throw Error(names_.description + " names " + std::to_string(description_.class_names->size()) +
                    " classes, but the network has " + std::to_string(classes()));
    }
}

std::vector<float> Classifier::scores(const ImageView& image, int threads) const {
    std::vector<float> input(static_cast<size_t>(shape_[1] * shape_[2] * shape_[3]));
    preprocess(image, description_.input, input.data());
    std::vector<std::vector<float>> outputs;
    std::vector<float*> pointers;
    for (size_t size : sizes_) {
        outputs.emplace_back(size);
        pointers.push_back(outputs.back().data());
    }
    const float* const data = input.data();
    engine_->run({1, {{shape_[2], shape_[3]}}}, &data, pointers.data(), threads);
    return std::move(outputs[output_]);
}

std::vector<Class> Classifier::classify(const ImageView& image, size_t top, int threads) const {
    const std::vector<float> scores = this->scores(image, threads);
    if (!std::all_of(scores.begin(), scores.end(), [](float score) { return std::isfinite(score); })) {
        throw Error(names_.network +
                    " gives values that are not finite for the image: its parameters are damaged or training diverged");
    }
    const DefaultFloatEnvironment environment;
    // Not in double, whose exp() compiled with glibc 2.29 or newer does not exist in older versions.
    const long double highest = *std::max_element(scores.begin(), scores.end());
    std::vector<Class> result;
    double sum = 0;
    for (size_t i = 0; i < scores.size(); i++) {
        result.push_back({i, static_cast<double>(std::exp(scores[i] - highest))});
        sum += result.back().probability;
    }
    for (Class& row : result) {
        row.probability /= sum;
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const Class& one, const Class& other) { return one.probability > other.probability; });
    result.resize(std::min(top, result.size()));
    return result;
}

Classifier load_classifier(const std::string& prefix, Precision precision) {
    const std::string symbol_file = prefix + "-symbol.json";
    Classifier::Names names = {prefix, symbol_file, prefix + "-0000.params", symbol_file};
    PackedSymbol symbol = read_symbol(read_file(names.symbol, kMaxTextBytes), names.symbol);
    if (!symbol.description) {
        const std::string summary = prefix + "-summary.json";  // files of versions before 0.2 have it there
        const bool exists = access(summary.c_str(), F_OK) == 0;
        names.description = exists ? summary : prefix;
        symbol.description = exists ? read_file(summary, kMaxTextBytes) : "{}";
    }
    Description description = read_description(*symbol.description, names.description);
    return Classifier(names, std::move(description), symbol.output, read_program_words(names.parameters), precision);
}

}  // namespace bmx
