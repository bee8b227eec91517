// Tests of misuse of the C interface: every call must fail as the header states, with a reason, and the program must
// compute the same afterwards. Prints the call that does not, and exits with status 1.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "api/bmx_melius.h"
#include "csrc/program_builder.h"

namespace {

constexpr int kChannels = 3, kSide = 5, kClasses = 4;
constexpr int64_t kShape[] = {1, kChannels, kSide, kSide};

// A program with two inputs and two outputs.
std::vector<int32_t> words_of_program() {
    ProgramBuilder builder;
    const int x = builder.input(kChannels, kSide, kSide);
    builder.input(kClasses);
    return builder.words({builder.relu(x), builder.conv(builder.global_avg_pool(x), kClasses)});
}

void ignore_step(void*, const char*, double, int64_t, int) {}
void ignore_peak(void*, const char*, int, double, double) {}

// Ends the program unless the call failed, the reason is one line with `reason` in it, and only this thread has it.
void require_failure(const std::string& call, const std::function<bool()>& fails, const std::string& reason) {
    bmx_program_load("", 1234);  // another failure: a reason that was there before is not a reason of this call
    const std::string before = bmx_last_error();
    const bool failed = fails();
    const std::string found = bmx_last_error();
    std::string elsewhere = "not asked";
    std::thread([&] { elsewhere = bmx_last_error(); }).join();
    if (!failed || found == before || found.find(reason) == std::string::npos ||
        found.find('\n') != std::string::npos || !elsewhere.empty()) {
        std::fprintf(stderr, "%s: failed %d, reason '%s', elsewhere '%s'\n", call.c_str(), failed, found.c_str(),
                     elsewhere.c_str());
        std::exit(1);
    }
}

// Memory for a run, and a run on it.
struct Run {
    std::vector<int64_t> shapes = {1, kChannels, kSide, kSide, 1, kClasses, 1, 1};
    std::vector<float> image = std::vector<float>(kChannels * kSide * kSide, 1), unused = std::vector<float>(kClasses);
    std::vector<float> map = std::vector<float>(image.size()), scores = std::vector<float>(kClasses);
    const float* inputs[2] = {image.data(), unused.data()};
    float* outputs[2] = {map.data(), scores.data()};
    int threads = 2;

    int run(const bmx_program* program) { return bmx_program_run(program, shapes.data(), inputs, outputs, threads); }
};

// Requires that a call returns `failure`, the value that stands for an error, with a reason.
#define REFUSED(call, failure, reason) require_failure(#call, [&] { return (call) == (failure); }, reason)

void check_programs(const std::vector<int32_t>& words) {
    const int32_t* const begin = words.data();
    REFUSED(bmx_program_create(nullptr, 4, BMX_EXACT), nullptr, "words is NULL");
    REFUSED(bmx_program_create(begin, 0, BMX_EXACT), nullptr, "header: 0 words");
    REFUSED(bmx_program_create(begin, words.size() - 1, BMX_EXACT), nullptr, "word 2, length");
    REFUSED(bmx_program_create(begin, words.size(), 3), nullptr, "the precision is 3");
    REFUSED(bmx_program_load(nullptr, BMX_EXACT), nullptr, "path is NULL");
    REFUSED(bmx_program_load("", BMX_EXACT), nullptr, ": cannot read it: No such file");
    REFUSED(bmx_program_load("/", BMX_EXACT), nullptr, "/: ");
    REFUSED(bmx_program_load("/dev/null", BMX_EXACT), nullptr, "/dev/null: ");
    REFUSED(bmx_program_load_memory(nullptr, 16, BMX_EXACT), nullptr, "content is NULL");
    REFUSED(bmx_program_load_memory(begin, 0, BMX_EXACT), nullptr, "content: not a .params file");
    REFUSED(bmx_program_load_memory(begin, words.size(), BMX_EXACT), nullptr, "content: not a");
    REFUSED(bmx_program_load_memory(begin, 16, 3), nullptr, "the precision is 3");
    bmx_program_destroy(nullptr);
}

void check_queries(const bmx_program* program) {
    Run run;
    int64_t shapes[8];
    int ranks[2];
    const int64_t* input = run.shapes.data();
    REFUSED(bmx_program_inputs(nullptr), 0, "program is NULL");
    REFUSED(bmx_program_outputs(nullptr), 0, "program is NULL");
    REFUSED(bmx_program_input_shape(nullptr, 0, shapes), 0, "program is NULL");
    REFUSED(bmx_program_input_shape(program, 0, nullptr), 0, "shape is NULL");
    REFUSED(bmx_program_input_shape(program, 2, shapes), 0, "there is no input 2");
    REFUSED(bmx_program_infer(nullptr, input, shapes, ranks), 1, "program is NULL");
    REFUSED(bmx_program_infer(program, nullptr, shapes, ranks), 1, "input_shapes is NULL");
    REFUSED(bmx_program_infer(program, input, nullptr, ranks), 1, "output_shapes is NULL");
    REFUSED(bmx_program_infer(program, input, shapes, nullptr), 1, "output_ranks is NULL");
    REFUSED(bmx_program_working_memory(nullptr, input, 1), -1, "program is NULL");
    REFUSED(bmx_program_working_memory(program, nullptr, 1), -1, "input_shapes is");
    REFUSED(bmx_program_working_memory(program, input, -1), -1, "threads must be");
    REFUSED(bmx_measure_peaks(1, nullptr, nullptr), 1, "callback is NULL");
    for (double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        REFUSED(bmx_measure_peaks(seconds, ignore_peak, nullptr), 1, "seconds is ");
    }
}

// A change of a valid run that makes it fail with a reason.
struct Mistake {
    const char* reason;
    std::function<void(Run&)> change;
};

const Mistake kMistakes[] = {
    {"inputs[0] is NULL", [](Run& run) { run.inputs[0] = nullptr; }},
    {"inputs[1] is NULL", [](Run& run) { run.inputs[1] = nullptr; }},
    {"outputs[1] is NULL", [](Run& run) { run.outputs[1] = nullptr; }},
    {"threads must be", [](Run& run) { run.threads = -1; }},
    {"threads must be", [](Run& run) { run.threads = 1025; }},
    {"input 0 must have the shape (batch, 3, height, width)", [](Run& run) { run.shapes[1] = kChannels + 1; }},
    {"input 1 must have the shape (batch, 4, height, width)", [](Run& run) { run.shapes[5] = 0; }},
    {"input 1 has the batch 2, input 0 has 1", [](Run& run) { run.shapes[4] = 2; }},
    {"batch 0; it must be 1 or more", [](Run& run) { run.shapes[0] = run.shapes[4] = 0; }},
    {"batch -1; it must be 1 or more", [](Run& run) { run.shapes[0] = run.shapes[4] = -1; }},
    {"at most 2147483647 are possible", [](Run& run) { run.shapes[0] = run.shapes[4] = INT64_MAX; }},
    {"(3, 0, 5) is not possible", [](Run& run) { run.shapes[2] = 0; }},
    {"(3, -9223372036854775808, 5) is not possible", [](Run& run) { run.shapes[2] = INT64_MIN; }},
    {"(3, 5, 9223372036854775807) is not possible", [](Run& run) { run.shapes[3] = INT64_MAX; }},
    {"(3, 65536, 65536) is not possible", [](Run& run) { run.shapes[2] = run.shapes[3] = 65536; }},
};

void check_runs(const bmx_program* program) {
    Run run;
    const int64_t* shapes = run.shapes.data();
    REFUSED(bmx_program_run(nullptr, shapes, run.inputs, run.outputs, 1), 1, "program is NULL");
    REFUSED(bmx_program_run(program, nullptr, run.inputs, run.outputs, 1), 1, "input_shapes is");
    REFUSED(bmx_program_run(program, shapes, nullptr, run.outputs, 1), 1, "inputs is NULL");
    REFUSED(bmx_program_run(program, shapes, run.inputs, nullptr, 1), 1, "outputs is NULL");
    REFUSED(bmx_program_profile(program, shapes, run.inputs, run.outputs, 1, nullptr, nullptr), 1, "callback is NULL");
    for (const Mistake& mistake : kMistakes) {
        Run wrong;
        mistake.change(wrong);
        const int64_t* wrong_shapes = wrong.shapes.data();
        REFUSED(wrong.run(program), 1, mistake.reason);
        REFUSED(bmx_program_profile(program, wrong_shapes, wrong.inputs, wrong.outputs, wrong.threads, ignore_step,
                                    nullptr),
                1, mistake.reason);
    }
}

// Calls of the functions for classifiers that have no valid one: tests/native/test_c_classifier.py has the others.
void check_classifiers(const std::vector<int32_t>& words) {
    const std::string symbol =
        R"({"nodes": [{"op": "null"}, {"op": "bmx_melius_packed"}], "heads": [[1, 0]], "attrs": )"
        R"({"bmx_melius_description": ["str", "{\"input\": {\"channels\": 1, \"size\": 4, \"resize\": null, )"
        R"(\"mean\": [0], \"std\": [1]}}"]}})";
    const auto load_memory = [&](const void* text, size_t bytes, const void* parameters, int precision) {
        return !bmx_classifier_load_memory(text, bytes, parameters, 4 * words.size(), precision);
    };
    require_failure("load NULL", [&] { return !bmx_classifier_load(nullptr, BMX_EXACT); }, "prefix is NULL");
    require_failure("load with 3", [&] { return !bmx_classifier_load("net", 3); }, "the precision is 3");
    require_failure("load none", [&] { return !bmx_classifier_load("", BMX_EXACT); }, "-symbol.json: cannot read it");
    require_failure("no symbol", [&] { return load_memory(nullptr, 1, words.data(), BMX_EXACT); }, "symbol is NULL");
    require_failure(
        "no bytes", [&] { return load_memory("", 0, words.data(), BMX_EXACT); }, "symbol: the symbol is damaged");
    require_failure(
        "no parameters", [&] { return load_memory(symbol.data(), symbol.size(), nullptr, BMX_EXACT); },
        "parameters is NULL");
    require_failure(
        "words", [&] { return load_memory(symbol.data(), symbol.size(), words.data(), BMX_EXACT); },
        "parameters: not a .params file");
    bmx_classifier_destroy(nullptr);
    uint8_t pixel = 0;
    int64_t shape[4];
    float input;
    size_t number;
    double probability;
    require_failure("classes", [&] { return !bmx_classifier_classes(nullptr); }, "classifier is NULL");
    require_failure("name", [&] { return !bmx_classifier_class_name(nullptr, 0); }, "classifier is NULL");
    require_failure("shape", [&] { return bmx_classifier_input_shape(nullptr, shape) == 1; }, "classifier is NULL");
    require_failure(
        "preprocess", [&] { return bmx_classifier_preprocess(nullptr, &pixel, 1, 1, 1, &input) == 1; },
        "classifier is NULL");
    require_failure(
        "classify", [&] { return !bmx_classifier_classify(nullptr, &pixel, 1, 1, 1, 1, 1, &number, &probability); },
        "classifier is NULL");
}

// Returns whether a profile has the results of a run, and for each step its name and a time.
bool profiles(const bmx_program* program, const Run& expected) {
    Run run;
    std::vector<std::string> names;
    const auto note = [](void* names, const char* name, double seconds, int64_t, int) {
        static_cast<std::vector<std::string>*>(names)->push_back(seconds >= 0 && seconds < 1000 ? name : "");
    };
    return !bmx_program_profile(program, run.shapes.data(), run.inputs, run.outputs, 2, note, &names) &&
           run.map == expected.map && run.scores == expected.scores && names.size() > 1 &&
           std::find(names.begin(), names.end(), "") == names.end();
}

}  // namespace

int main() {
    std::vector<int32_t> words = words_of_program();
    bmx_program* program = bmx_program_create(words.data(), words.size(), BMX_EXACT);
    std::fill(words.begin(), words.end(), -1);  // the program must not need them any more
    Run before, after;
    if (!program || before.run(program)) {
        std::fprintf(stderr, "the program cannot be run: %s\n", bmx_last_error());
        return 1;
    }
    words = words_of_program();
    check_programs(words);
    check_queries(program);
    check_runs(program);
    check_classifiers(words);
    int64_t shape[4] = {};
    const bool known = bmx_program_input_shape(program, 0, shape) == 4 && !std::memcmp(shape, kShape, sizeof shape);
    if (!known || after.run(program) || after.map != before.map || after.scores != before.scores) {
        std::fprintf(stderr, "the program computes something else after the failures\n");
        return 1;
    }
    if (!profiles(program, before)) {
        std::fprintf(stderr, "a profile is incomplete or computes something else\n");
        return 1;
    }
    bmx_program_destroy(program);
}
