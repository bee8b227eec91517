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

void check_programs(const std::vector<int32_t>& words) {
    require_failure("create NULL", [&] { return !bmx_program_create(nullptr, 4, BMX_EXACT); }, "words is NULL");
    require_failure("create empty", [&] { return !bmx_program_create(words.data(), 0, BMX_EXACT); }, "header: 0 words");
    require_failure(
        "create a part", [&] { return !bmx_program_create(words.data(), words.size() - 1, BMX_EXACT); },
        "word 2, length");
    require_failure(
        "create with 3", [&] { return !bmx_program_create(words.data(), words.size(), 3); }, "the precision is 3");
    require_failure("load NULL", [&] { return !bmx_program_load(nullptr, BMX_EXACT); }, "path is NULL");
    require_failure("load nothing", [&] { return !bmx_program_load("", BMX_EXACT); }, ": cannot read it: No such file");
    require_failure("load a folder", [&] { return !bmx_program_load("/", BMX_EXACT); }, "/: ");
    require_failure("load a device", [&] { return !bmx_program_load("/dev/null", BMX_EXACT); }, "/dev/null: ");
    require_failure("load NULL", [&] { return !bmx_program_load_memory(nullptr, 16, BMX_EXACT); }, "content is NULL");
    require_failure(
        "load no bytes", [&] { return !bmx_program_load_memory(words.data(), 0, BMX_EXACT); },
        "content: not a .params file");
    require_failure(
        "load words", [&] { return !bmx_program_load_memory(words.data(), words.size(), BMX_EXACT); },
        "content: not a");
    require_failure("load with 3", [&] { return !bmx_program_load_memory(words.data(), 16, 3); }, "the precision is 3");
    bmx_program_destroy(nullptr);
}

void check_queries(const bmx_program* program) {
    Run run;
    int64_t shapes[8];
    int ranks[2];
    require_failure("inputs of NULL", [&] { return bmx_program_inputs(nullptr) == 0; }, "program is NULL");
    require_failure("outputs of NULL", [&] { return bmx_program_outputs(nullptr) == 0; }, "program is NULL");
    require_failure(
        "shape of NULL", [&] { return bmx_program_input_shape(nullptr, 0, shapes) == 0; }, "program is NULL");
    require_failure(
        "shape to NULL", [&] { return bmx_program_input_shape(program, 0, nullptr) == 0; }, "shape is NULL");
    require_failure(
        "shape of input 2", [&] { return bmx_program_input_shape(program, 2, shapes) == 0; }, "there is no input 2");
    const int64_t* input = run.shapes.data();
    require_failure(
        "infer NULL", [&] { return bmx_program_infer(nullptr, input, shapes, ranks) == 1; }, "program is NULL");
    require_failure(
        "infer from NULL", [&] { return bmx_program_infer(program, nullptr, shapes, ranks) == 1; },
        "input_shapes is NULL");
    require_failure(
        "infer to NULL", [&] { return bmx_program_infer(program, input, nullptr, ranks) == 1; },
        "output_shapes is NULL");
    require_failure(
        "infer ranks", [&] { return bmx_program_infer(program, input, shapes, nullptr) == 1; }, "output_ranks is NULL");
    require_failure(
        "memory of NULL", [&] { return bmx_program_working_memory(nullptr, input, 1) == -1; }, "program is NULL");
    require_failure(
        "memory of no shapes", [&] { return bmx_program_working_memory(program, nullptr, 1) == -1; },
        "input_shapes is");
    require_failure(
        "memory of -1 threads", [&] { return bmx_program_working_memory(program, input, -1) == -1; },
        "threads must be");
    require_failure("peaks to NULL", [&] { return bmx_measure_peaks(1, nullptr, nullptr) == 1; }, "callback is NULL");
    for (double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        require_failure("peaks", [&] { return bmx_measure_peaks(seconds, ignore_peak, nullptr) == 1; }, "seconds is ");
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
    require_failure(
        "run NULL", [&] { return bmx_program_run(nullptr, shapes, run.inputs, run.outputs, 1) == 1; },
        "program is NULL");
    require_failure(
        "no shapes", [&] { return bmx_program_run(program, nullptr, run.inputs, run.outputs, 1) == 1; },
        "input_shapes is");
    require_failure(
        "no inputs", [&] { return bmx_program_run(program, shapes, nullptr, run.outputs, 1) == 1; }, "inputs is NULL");
    require_failure(
        "no outputs", [&] { return bmx_program_run(program, shapes, run.inputs, nullptr, 1) == 1; }, "outputs is NULL");
    require_failure(
        "no callback",
        [&] { return bmx_program_profile(program, shapes, run.inputs, run.outputs, 1, nullptr, nullptr) == 1; },
        "callback is NULL");
    for (const Mistake& mistake : kMistakes) {
        Run wrong;
        mistake.change(wrong);
        require_failure("run", [&] { return wrong.run(program) == 1; }, mistake.reason);
        const auto profile = [&] {
            return bmx_program_profile(program, wrong.shapes.data(), wrong.inputs, wrong.outputs, wrong.threads,
                                       ignore_step, nullptr) == 1;
        };
        require_failure("profile", profile, mistake.reason);
    }
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
