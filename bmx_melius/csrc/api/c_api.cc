#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "api/bmx_melius.h"
#include "api/classifier.h"
#include "api/engine.h"
#include "kernels/dispatch.h"
#include "peaks/peak.h"
#include "program/container.h"
#include "program/error.h"
#include "program/shapes.h"
#include "threads/thread_count.h"

#define BMX_EXPORT __attribute__((visibility("default")))

#ifndef BMX_VERSION
#define BMX_VERSION "development"
#endif

struct bmx_program {
    std::unique_ptr<const bmx::Engine> engine;
};

struct bmx_classifier {
    bmx::Classifier classifier;
};

namespace {

thread_local std::string last_error;

// Without memory for a copy the reason is a shorter one, for which std::string allocates nothing.
void set_error(const char* reason) noexcept {
    try {
        last_error = reason;
    } catch (const std::exception&) {
        last_error = "out of memory";
    }
}

// Calls a function; if it throws, sets last_error and returns `failure`.
template <class Result, class Function>
Result guarded(Result failure, const Function& function) {
    try {
        return function();
    } catch (const std::bad_alloc&) {
        set_error("out of memory");
    } catch (const std::exception& error) {
        set_error(error.what());
    } catch (...) {
        set_error("an unknown failure");
    }
    return failure;
}

// Returns a pointer that a caller has passed. Throws Error if it is NULL.
template <class Pointer>
Pointer require_non_null(Pointer pointer, const char* name) {
    if (!pointer) {
        throw bmx::Error(std::string(name) + " is NULL");
    }
    return pointer;
}

const bmx::Engine& engine_of(const bmx_program* program) { return *require_non_null(program, "program")->engine; }

const bmx::Classifier& classifier_of(const bmx_classifier* classifier) {
    return require_non_null(classifier, "classifier")->classifier;
}

const bmx::Program& parsed(const bmx_program* program) { return engine_of(program).program(); }

// Throws Error if one of the arrays of a run is NULL.
template <class Pointer>
void require_arrays(const Pointer* arrays, size_t count, const char* name) {
    require_non_null(arrays, name);
    for (size_t i = 0; i < count; i++) {
        if (!arrays[i]) {
            throw bmx::Error(std::string(name) + "[" + std::to_string(i) + "] is NULL");
        }
    }
}

// `shapes`: 4 numbers for each input, of which flat shapes have 2.
bmx::InputSizes sizes_of(const bmx::Program& program, const int64_t* shapes) {
    require_non_null(shapes, "input_shapes");
    std::vector<bmx::Shape> inputs;
    for (const bmx::Value& input : program.inputs()) {
        inputs.emplace_back(shapes, shapes + (input.flat ? 2 : 4));
        shapes += 4;
    }
    return bmx::check_shapes(program, inputs);
}

bmx::Precision checked_precision(int precision) {
    switch (precision) {
        case BMX_EXACT:
            return bmx::Precision::exact;
        case BMX_FAST:
            return bmx::Precision::fast;
        case BMX_BF16:
            return bmx::Precision::bf16;
    }
    throw bmx::Error("the precision is " + std::to_string(precision) + "; it must be BMX_EXACT, BMX_FAST or BMX_BF16");
}

}  // namespace

extern "C" {

BMX_EXPORT const char* bmx_last_error(void) { return last_error.c_str(); }

BMX_EXPORT const char* bmx_version(void) { return BMX_VERSION; }

BMX_EXPORT const char* bmx_isa(void) {
    return guarded<const char*>(nullptr, [] { return bmx::chosen_instruction_set(bmx::Precision::exact).name; });
}

BMX_EXPORT const char* bmx_available_isas(void) {
    return guarded<const char*>(nullptr, [] { return bmx::instruction_set_names().c_str(); });
}

BMX_EXPORT bmx_program* bmx_program_create(const int32_t* words, size_t count, int precision) {
    return guarded<bmx_program*>(nullptr, [&] {
        const int32_t* const begin = require_non_null(words, "words");
        return new bmx_program{std::make_unique<const bmx::Engine>(begin, count, checked_precision(precision))};
    });
}

BMX_EXPORT bmx_program* bmx_program_load(const char* path, int precision) {
    return guarded<bmx_program*>(nullptr, [&] {
        const bmx::Precision wanted = checked_precision(precision);
        const std::string file = require_non_null(path, "path");
        return new bmx_program{bmx::engine_in_file(bmx::read_program_words(file), wanted, file)};
    });
}

BMX_EXPORT bmx_program* bmx_program_load_memory(const void* content, size_t bytes, int precision) {
    return guarded<bmx_program*>(nullptr, [&] {
        const bmx::Precision wanted = checked_precision(precision);
        const uint8_t* const begin = static_cast<const uint8_t*>(require_non_null(content, "content"));
        return new bmx_program{
            bmx::engine_in_file(bmx::find_program_words(begin, bytes, "content"), wanted, "content")};
    });
}

BMX_EXPORT void bmx_program_destroy(bmx_program* program) { delete program; }

BMX_EXPORT size_t bmx_program_inputs(const bmx_program* program) {
    return guarded<size_t>(0, [&] { return parsed(program).inputs().size(); });
}

BMX_EXPORT size_t bmx_program_outputs(const bmx_program* program) {
    return guarded<size_t>(0, [&] { return parsed(program).outputs().size(); });
}

BMX_EXPORT int bmx_program_input_shape(const bmx_program* program, size_t input, int64_t shape[4]) {
    return guarded(0, [&] {
        const std::vector<bmx::Value>& inputs = parsed(program).inputs();
        require_non_null(shape, "shape");
        if (input >= inputs.size()) {
            throw bmx::Error("there is no input " + std::to_string(input) + ": the program has " +
                             std::to_string(inputs.size()));
        }
        const bmx::Value& value = inputs[input];
        shape[0] = 1;
        shape[1] = value.channels;
        if (value.flat) {
            return 2;
        }
        shape[2] = value.height;
        shape[3] = value.width;
        return 4;
    });
}

BMX_EXPORT int bmx_program_infer(const bmx_program* program, const int64_t* input_shapes, int64_t* output_shapes,
                                 int* output_ranks) {
    return guarded(1, [&] {
        const bmx::Program& layers = parsed(program);
        const bmx::InputSizes sizes = sizes_of(layers, input_shapes);
        require_non_null(output_shapes, "output_shapes");
        require_non_null(output_ranks, "output_ranks");
        const std::vector<bmx::Value> values = layers.infer(sizes.maps);
        for (size_t i = 0; i < layers.outputs().size(); i++) {
            bmx::Shape shape = bmx::shape_of(values[layers.outputs()[i]], sizes.batch);
            output_ranks[i] = static_cast<int>(shape.size());
            shape.resize(4);
            std::copy(shape.begin(), shape.end(), output_shapes + 4 * i);
        }
        return 0;
    });
}

BMX_EXPORT int bmx_default_threads(void) {
    return guarded(1, [] { return bmx::threads_of_run(0); });
}

BMX_EXPORT int bmx_program_run(const bmx_program* program, const int64_t* input_shapes, const float* const* inputs,
                               float* const* outputs, int threads) {
    return guarded(1, [&] {
        const bmx::InputSizes sizes = sizes_of(parsed(program), input_shapes);
        require_arrays(inputs, bmx_program_inputs(program), "inputs");
        require_arrays(outputs, bmx_program_outputs(program), "outputs");
        program->engine->run(sizes, inputs, outputs, threads);
        return 0;
    });
}

BMX_EXPORT int64_t bmx_program_working_memory(const bmx_program* program, const int64_t* input_shapes, int threads) {
    return guarded<int64_t>(
        -1, [&] { return engine_of(program).working_memory(sizes_of(parsed(program), input_shapes), threads); });
}

BMX_EXPORT int bmx_program_profile(const bmx_program* program, const int64_t* input_shapes, const float* const* inputs,
                                   float* const* outputs, int threads, bmx_step_callback callback, void* context) {
    return guarded(1, [&] {
        const bmx::InputSizes sizes = sizes_of(parsed(program), input_shapes);
        require_arrays(inputs, bmx_program_inputs(program), "inputs");
        require_arrays(outputs, bmx_program_outputs(program), "outputs");
        require_non_null(callback, "callback");
        for (const bmx::StepReport& step : program->engine->profile(sizes, inputs, outputs, threads)) {
            callback(context, step.name.c_str(), step.seconds, step.macs, static_cast<int>(step.kind));
        }
        return 0;
    });
}

BMX_EXPORT bmx_classifier* bmx_classifier_load(const char* prefix, int precision) {
    return guarded<bmx_classifier*>(nullptr, [&] {
        const bmx::Precision wanted = checked_precision(precision);
        return new bmx_classifier{bmx::load_classifier(require_non_null(prefix, "prefix"), wanted)};
    });
}

BMX_EXPORT bmx_classifier* bmx_classifier_load_memory(const void* symbol, size_t symbol_bytes, const void* parameters,
                                                      size_t parameter_bytes, int precision) {
    return guarded<bmx_classifier*>(nullptr, [&] {
        const bmx::Precision wanted = checked_precision(precision);
        const std::string text(static_cast<const char*>(require_non_null(symbol, "symbol")), symbol_bytes);
        const uint8_t* const begin = static_cast<const uint8_t*>(require_non_null(parameters, "parameters"));
        const bmx::PackedSymbol found = bmx::read_symbol(text, "symbol");
        return new bmx_classifier{{{"the network", "symbol", "parameters", "symbol"},
                                   bmx::read_description(found.description.value_or("{}"), "symbol"),
                                   found.output,
                                   bmx::find_program_words(begin, parameter_bytes, "parameters"),
                                   wanted}};
    });
}

BMX_EXPORT void bmx_classifier_destroy(bmx_classifier* classifier) { delete classifier; }

BMX_EXPORT size_t bmx_classifier_classes(const bmx_classifier* classifier) {
    return guarded<size_t>(0, [&] { return classifier_of(classifier).classes(); });
}

BMX_EXPORT const char* bmx_classifier_class_name(const bmx_classifier* classifier, size_t number) {
    return guarded<const char*>(nullptr, [&]() -> const char* {
        const bmx::Classifier& network = classifier_of(classifier);
        if (number >= network.classes()) {
            throw bmx::Error("there is no class " + std::to_string(number) + ": the network has " +
                             std::to_string(network.classes()));
        }
        const auto& names = network.description().class_names;
        return names ? (*names)[number].c_str() : nullptr;
    });
}

BMX_EXPORT int bmx_classifier_input_shape(const bmx_classifier* classifier, int64_t shape[4]) {
    return guarded(1, [&] {
        const bmx::Shape& found = classifier_of(classifier).input_shape();
        std::copy(found.begin(), found.end(), require_non_null(shape, "shape"));
        return 0;
    });
}

BMX_EXPORT int bmx_classifier_preprocess(const bmx_classifier* classifier, const uint8_t* pixels, int64_t height,
                                         int64_t width, int64_t channels, float* input) {
    return guarded(1, [&] {
        const bmx::InputSpec& spec = classifier_of(classifier).description().input;
        const bmx::ImageView image = {require_non_null(pixels, "pixels"), height, width, channels};
        bmx::preprocess(image, spec, require_non_null(input, "input"));
        return 0;
    });
}

BMX_EXPORT size_t bmx_classifier_classify(const bmx_classifier* classifier, const uint8_t* pixels, int64_t height,
                                          int64_t width, int64_t channels, int threads, size_t top, size_t* numbers,
                                          double* probabilities) {
    return guarded<size_t>(0, [&] {
        const bmx::Classifier& network = classifier_of(classifier);
        const bmx::ImageView image = {require_non_null(pixels, "pixels"), height, width, channels};
        require_non_null(numbers, "numbers");
        require_non_null(probabilities, "probabilities");
        if (top == 0) {
            throw bmx::Error("top is 0; it must be at least 1");
        }
        for (const bmx::Class& row : network.classify(image, top, threads)) {
            *numbers++ = row.number;
            *probabilities++ = row.probability;
        }
        return std::min(top, network.classes());
    });
}

BMX_EXPORT int bmx_measure_peaks(double seconds, bmx_peak_callback callback, void* context) {
    return guarded(1, [&] {
        require_non_null(callback, "callback");
        if (!(seconds > 0 && std::isfinite(seconds))) {
            throw bmx::Error("seconds is " + std::to_string(seconds) + "; it must be a positive, finite number");
        }
        const bmx::InstructionSet set = bmx::chosen_instruction_set(bmx::Precision::exact);
        for (const bmx::Peak& peak : bmx::measure_peaks(set, seconds)) {
            callback(context, peak.method, static_cast<int>(peak.kind), peak.in_registers, peak.in_cache);
        }
        return 0;
    });
}

}  // extern "C"
