// Tests of the engine's threads: thread_team_test CHECK [ARGUMENTS]. On failure prints a message and exits with
// status 1. Built with the thread sanitizer it also finds data races.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "program/error.h"
#include "threads/thread_count.h"
#include "threads/thread_pool.h"

namespace {

using namespace bmx;

constexpr auto kLong = std::chrono::milliseconds(300);
constexpr double kLittle = 0.1;  // CPU seconds that waiting for kLong may take

double cpu_seconds() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

bool require(bool holds, const char* what) {
    if (!holds) {
        std::printf("not so: %s\n", what);
    }
    return holds;
}

// Each part adds the results of all parts of the previous phase, so that a part that runs too early, too late, twice or
// never changes the final result.
class Sums : public PhasedWork {
  public:
    Sums(int threads, int phases) : cells_(phases + 1, std::vector<uint32_t>(threads)), ended_(phases) {
        cells_[0].assign(threads, 1);
    }

    int phases() const override { return static_cast<int>(ended_.size()); }

    void run(int phase, int part) noexcept override {
        for (uint32_t cell : cells_[phase]) {
            cells_[phase + 1][part] += cell;
        }
    }

    void ended(int phase) noexcept override {
        for (uint32_t cell : cells_[phase + 1]) {
            ended_[phase] += cell;
        }
    }

    bool right() const {
        uint32_t expected = 1;
        bool right = true;
        for (size_t phase = 0; phase < ended_.size(); phase++) {
            expected *= static_cast<uint32_t>(cells_[0].size());
            for (uint32_t cell : cells_[phase + 1]) {
                right &= cell == expected;
            }
            right &= ended_[phase] == expected * static_cast<uint32_t>(cells_[0].size());
        }
        return right;
    }

  private:
    std::vector<std::vector<uint32_t>> cells_;
    std::vector<uint32_t> ended_;
};

// One part of one phase sleeps for a long time.
class Late : public Sums {
  public:
    using Sums::Sums;

    void run(int phase, int part) noexcept override {
        if (phase == 1 && part == 1) {
            std::this_thread::sleep_for(kLong);
        }
        Sums::run(phase, part);
    }
};

bool compute(ThreadPool& pool, int threads, int phases) {
    Sums sums(threads, phases);
    ThreadPool::Lease(pool, threads).run(sums);
    return sums.right();
}

bool phases_are_in_order() {
    bool good = true;
    for (int threads : {1, 2, 3, 5, 16}) {
        const auto pool = ThreadPool::shared();
        for (int phases : {1, 2, 50, 1000}) {
            good &= compute(*pool, threads, phases);
        }
    }
    return require(good, "each part runs once, after all parts of the phase before");
}

bool callers_get_teams_of_their_own() {
    const auto pool = ThreadPool::shared();
    std::vector<char> good(6, true);
    std::vector<std::thread> callers;
    for (size_t i = 0; i < good.size(); i++) {
        callers.emplace_back([&, i] {
            for (int run = 0; run < 100; run++) {
                good[i] &= compute(*pool, 1 + (i + run) % 4, 1 + run % 7);
            }
        });
    }
    bool all = true;
    for (size_t i = 0; i < good.size(); i++) {
        callers[i].join();
        all &= good[i] != 0;
    }
    return require(all, "runs at the same time do not disturb each other");
}

bool waiting_for_a_late_part_takes_no_core() {
    ThreadTeam team(4);
    Late late(4, 3);
    const double before = cpu_seconds();
    team.run(late);
    return require(cpu_seconds() - before < kLittle, "threads sleep while one is late") & require(late.right(), "sums");
}

bool waiting_for_a_run_takes_no_core() {
    ThreadTeam team(4);
    Sums first(4, 3), second(4, 3);
    team.run(first);
    const double before = cpu_seconds();
    std::this_thread::sleep_for(kLong);
    const bool little = cpu_seconds() - before < kLittle;
    team.run(second);
    return require(little, "threads sleep between two runs") & require(second.right(), "they wake for the next one");
}

bool a_child_computes_with_one_thread() {
    auto pool = ThreadPool::shared();
    bool good = compute(*pool, 3, 10);
    const pid_t child = fork();
    if (child == 0) {
        const bool one = threads_of_run(0) == 1 && threads_of_run(3) == 1 && compute(*pool, threads_of_run(3), 10);
        pool.reset();  // must not wait for the threads of the parent
        _exit(one ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    good &= compute(*pool, 3, 10);
    return require(status == 0, "the child computes with one thread") & require(good, "its parent with several");
}

int threads_of_process() {
    std::FILE* file = std::fopen("/proc/self/status", "r");
    int threads = 0;
    for (char line[256]; std::fgets(line, sizeof line, file);) {
        std::sscanf(line, "Threads: %d", &threads);
    }
    std::fclose(file);
    return threads;
}

// The system may still count a thread for a moment after it has been joined.
bool threads_become(int number) {
    for (int attempt = 0; attempt < 5000 && threads_of_process() != number; attempt++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return threads_of_process() == number;
}

bool threads_end_with_the_last_user() {
    std::thread([] {}).join();  // the thread sanitizer starts an additional thread with the first one
    const int before = threads_of_process();
    auto pool = ThreadPool::shared(), other = ThreadPool::shared();
    compute(*pool, 4, 2);
    pool.reset();
    const bool kept = threads_become(before + 3);
    other.reset();
    return require(kept, "threads are kept for the next run") &
           require(threads_become(before), "threads end with the last user of the pool");
}

bool too_many_threads_are_an_error() {
    const rlimit memory = {256 << 20, 256 << 20};
    setrlimit(RLIMIT_AS, &memory);
    try {
        ThreadTeam team(kMaxThreads);
    } catch (const Error& error) {
        return require(std::strstr(error.what(), "cannot start 1024 threads"), error.what());
    }
    return require(false, "threads that cannot be started are an error");
}

struct Check {
    const char* name;
    bool (*run)();
};

constexpr Check kChecks[] = {
    {"order", phases_are_in_order},
    {"callers", callers_get_teams_of_their_own},
    {"late", waiting_for_a_late_part_takes_no_core},
    {"idle", waiting_for_a_run_takes_no_core},
    {"fork", a_child_computes_with_one_thread},
    {"end", threads_end_with_the_last_user},
    {"limit", too_many_threads_are_an_error},
};

}  // namespace

int main(int argc, char** argv) {
    if (argc == 4 && !std::strcmp(argv[1], "quota")) {
        std::printf("%d\n", quota_of(argv[2], argv[3]));
        return 0;
    }
    for (const Check& check : kChecks) {
        if (argc == 2 && !std::strcmp(argv[1], check.name)) {
            return check.run() ? 0 : 1;
        }
    }
    std::printf("there is no such check\n");
    return 2;
}
