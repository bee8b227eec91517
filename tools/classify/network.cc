#include "network.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "files.h"

namespace classify {

Network::Network(const std::string& prefix)
    : prefix_(prefix),
      description_(read_description(prefix)),
      program_(bmx_program_load((prefix + "-0000.params").c_str(), BMX_EXACT), bmx_program_destroy) {
    if (!program_) {
        throw Error(bmx_last_error());
    }
    if (bmx_program_inputs(program_.get()) != 1 || description_.output >= bmx_program_outputs(program_.get())) {
        throw Error(prefix_ + "-symbol.json and " + prefix_ +
                    "-0000.params are not from the same conversion of a classifier: convert the network again");
    }
    const int64_t shape[] = {1, input().channels, input().size, input().size};
    std::copy_n(shape, 4, shape_);
    require_classifier();
}

void Network::require_classifier() {
    const size_t outputs = bmx_program_outputs(program_.get());
    std::vector<int64_t> shapes(4 * outputs);
    std::vector<int> ranks(outputs);
    if (bmx_program_infer(program_.get(), shape_, shapes.data(), ranks.data())) {
        throw Error(prefix_ + ": " + bmx_last_error());
    }
    for (size_t i = 0; i < outputs; i++) {
        const auto begin = shapes.begin() + static_cast<ptrdiff_t>(4 * i);
        const int64_t size = std::accumulate(begin, begin + ranks[i], int64_t{1}, std::multiplies<int64_t>());
        sizes_.push_back(static_cast<size_t>(size));
        if (i == description_.output && *std::max_element(begin, begin + ranks[i]) != size) {
            throw Error(prefix_ + " is not a classifier: its output has " + std::to_string(size) +
                        " values in several dimensions, not one value for each class");
        }
    }
    const size_t classes = sizes_[description_.output];
    if (description_.class_names && description_.class_names->size() != classes) {
        throw Error(description_.source + " names " + std::to_string(description_.class_names->size()) +
                    " classes, but the network has " + std::to_string(classes));
    }
}

std::vector<Class> Network::classify(const std::vector<float>& input, size_t top, int threads,
                                     const std::string& image) const {
    std::vector<std::vector<float>> outputs;
    std::vector<float*> pointers;
    for (size_t size : sizes_) {
        outputs.emplace_back(size);
        pointers.push_back(outputs.back().data());
    }
    const float* data = input.data();
    if (bmx_program_run(program_.get(), shape_, &data, pointers.data(), threads)) {
        throw Error(prefix_ + ": " + bmx_last_error());
    }
    const std::vector<float>& scores = outputs[description_.output];
    const double highest = *std::max_element(scores.begin(), scores.end());
    std::vector<Class> result;
    double sum = 0;
    for (size_t i = 0; i < scores.size(); i++) {
        if (!std::isfinite(scores[i])) {
            throw Error(prefix_ + " gives values that are not finite for " + image +
                        ": its parameters are damaged or training diverged");
        }
        result.push_back({i, std::exp(static_cast<double>(scores[i]) - highest)});
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

}  // namespace classify
