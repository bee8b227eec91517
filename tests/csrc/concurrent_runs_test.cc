// Tests of concurrent use of the C interface: concurrent_runs_test CHECK REPETITIONS. Every run must give the result of
// a run by one thread; on failure prints a message and exits with status 1. Built with the thread sanitizer it also
// finds data races.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "api/bmx_melius.h"
#include "csrc/program_builder.h"

namespace {

constexpr int kChannels = 8, kSide = 6, kClasses = 5, kCallers = 4, kMaxThreads = 3;
constexpr int kForks = 20;  // at most: a fork of a process under the sanitizer takes long
constexpr int kChildSeconds = 60;

// The thread sanitizer of GCC 12 does not lock its allocator during a fork: a child could wait forever for a lock that
// a thread held which the child does not have. A child has one thread and so no data race.
#ifdef __SANITIZE_THREAD__
constexpr bool kChildrenRun = false;
#else
constexpr bool kChildrenRun = true;
#endif

using Words = std::vector<int32_t>;
using Floats = std::vector<float>;

// A program with steps that threads share and steps with tables that they fill. Its arrays are zeros, except for
// `marker`, one of the thresholds.
Words words_of(float marker) {
    ProgramBuilder builder;
    const int x = builder.input(kChannels, kSide, kSide);
    const int bits = builder.threshold(x);
    const int binary = builder.binary_conv(bits, 40);
    const int sum = builder.add(binary, builder.binary_conv(builder.threshold(binary), 40));
    const int pooled = builder.max_pool(builder.relu(sum));
    const int scores = builder.conv(builder.global_avg_pool(pooled), kClasses);
    const int result = builder.shuffle(builder.concat({pooled, pooled}), 2);
    Words words = builder.words({pooled, scores, result});
    std::memcpy(&words[8 + 4 + 3 + 1 + 1], &marker, sizeof marker);  // header, input, head, source, number of the array
    return ProgramBuilder::with_header(words);
}

struct Request {
    int64_t batch, side;
    int threads;
};

Request request_of(int number) { return {1 + number % 5, kSide + 2 * (number / 5 % 3), number % (kMaxThreads + 1)}; }

// Runs a program. Returns the elements of all outputs, or nothing and prints the error.
Floats run(const bmx_program* program, const Request& request) {
    const int64_t input[] = {request.batch, kChannels, request.side, request.side};
    Floats image(request.batch * kChannels * request.side * request.side);
    for (size_t i = 0; i < image.size(); i++) {
        image[i] = static_cast<float>(i * 7919 % 31) - 15;
    }
    int64_t shapes[3 * 4];
    int ranks[3];
    if (bmx_program_infer(program, input, shapes, ranks) || bmx_program_working_memory(program, input, 2) < 0) {
        std::printf("infer: %s\n", bmx_last_error());
        return {};
    }
    std::vector<Floats> outputs;
    std::vector<float*> places;
    for (int i = 0; i < 3; i++) {
        int64_t elements = 1;
        for (int axis = 0; axis < ranks[i]; axis++) {
            elements *= shapes[4 * i + axis];
        }
        outputs.emplace_back(elements);
        places.push_back(outputs.back().data());
    }
    const float* images = image.data();
    if (bmx_program_run(program, input, &images, places.data(), request.threads)) {
        std::printf("run: %s\n", bmx_last_error());
        return {};
    }
    Floats all;
    for (const Floats& output : outputs) {
        all.insert(all.end(), output.begin(), output.end());
    }
    return all;
}

bmx_program* create(const Words& words) {
    bmx_program* program = bmx_program_create(words.data(), words.size(), BMX_EXACT);
    if (!program) {
        std::printf("create: %s\n", bmx_last_error());
        std::exit(1);
    }
    return program;
}

// Calls a function (caller, repetition) -> whether all is well in several threads, and returns whether all is.
bool concurrently(int repetitions, const std::function<bool(int, int)>& call) {
    std::atomic<bool> good{true};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < kCallers; caller++) {
        callers.emplace_back([&, caller] {
            for (int i = 0; i < repetitions && good; i++) {
                if (!call(caller, i)) {
                    good = false;
                }
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
    return good;
}

class Expected {
  public:
    explicit Expected(const bmx_program* program) {
        for (int i = 0; i < kRequests; i++) {
            Request request = request_of(i);
            request.threads = 1;
            results_.push_back(run(program, request));
        }
    }
    bool has(int number, const Floats& result) const {
        const Floats& expected = results_[number % kRequests];
        return !result.empty() && result == expected;
    }

  private:
    static constexpr int kRequests = 5 * 3 * (kMaxThreads + 1);
    std::vector<Floats> results_;
};

// Threads with the same program, each with other batches, sizes and numbers of threads.
bool runs(int repetitions) {
    bmx_program* program = create(words_of(1));
    const Expected expected(program);
    const bool good = concurrently(repetitions, [&](int caller, int i) {
        const int number = i * 7 + caller;
        return expected.has(number, run(program, request_of(number)));
    });
    bmx_program_destroy(program);
    return good;
}

// Programs are created, run and destroyed in every thread, so that their threads start and end all the time; some words
// are refused, with an error of that thread.
bool loads(int repetitions) {
    Words damaged = words_of(1);
    damaged.back()++;
    return concurrently(repetitions, [&](int caller, int i) {
        bmx_program* program = create(words_of(static_cast<float>(caller)));
        Request request = request_of(i + caller);
        const Floats several = run(program, request);
        request.threads = 1;
        bool good = !several.empty() && several == run(program, request);
        if (bmx_program_create(damaged.data(), damaged.size(), BMX_EXACT) ||
            !std::strstr(bmx_last_error(), "word 3, checksum")) {
            good = false;
        }
        bmx_program_destroy(program);
        return good;
    });
}

// One thread forks while others run; the children run the program, if they can allocate memory, and end.
bool forks(int repetitions) {
    bmx_program* program = create(words_of(1));
    const Expected expected(program);
    const int forks = repetitions < kForks ? repetitions : kForks;
    const bool good = concurrently(repetitions, [&](int caller, int i) {
        if (caller || i >= forks) {
            return expected.has(i + caller, run(program, request_of(i + caller)));
        }
        const pid_t child = fork();
        if (child == 0) {
            if (!kChildrenRun) {
                _exit(0);
            }
            alarm(kChildSeconds);  // ends it if it waits for a thread that it does not have
            const bool same = expected.has(i, run(program, request_of(i)));
            bmx_program* other = create(words_of(2));
            const bool also = !run(other, request_of(i)).empty();
            bmx_program_destroy(other);
            _exit(same && also ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        return status == 0;
    });
    bmx_program_destroy(program);
    return good;
}

struct Check {
    const char* name;
    bool (*run)(int);
};

constexpr Check kChecks[] = {{"runs", runs}, {"loads", loads}, {"forks", forks}};

}  // namespace

int main(int argc, char** argv) {
    for (const Check& check : kChecks) {
        if (argc == 3 && !std::strcmp(argv[1], check.name)) {
            const bool good = check.run(std::atoi(argv[2]));
            if (!good) {
                std::printf("%s: a run gives another result than with one thread, or fails\n", check.name);
            }
            return good ? 0 : 1;
        }
    }
    std::printf("there is no such check\n");
    return 2;
}
