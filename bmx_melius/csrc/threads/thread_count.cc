#include "threads/thread_count.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "program/error.h"
#include "threads/forking.h"

namespace bmx {
namespace {

int usable_cores() {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
        return CPU_COUNT(&cores);
    }
    return static_cast<int>(
        std::thread::hardware_concurrency());  // the system has more cores than a cpu_set_t has bits
}

// Parsed like OpenMP does: the number for the outermost level; invalid values are ignored.
int requested_by_environment() {
    const char* text = std::getenv("OMP_NUM_THREADS");
    const long number = text ? std::strtol(text, nullptr, 10) : 0;
    return number > 0 ? static_cast<int>(std::min<long>(number, kMaxThreads)) : 0;
}

int find_default_threads() {
    int threads = std::max(usable_cores(), 1);
    for (int limit : {quota_of("/sys/fs/cgroup", "/proc/self/cgroup"), requested_by_environment(), kMaxThreads}) {
        if (limit > 0) {
            threads = std::min(threads, limit);
        }
    }
    return threads;
}

}  // namespace

int quota_of(const std::string& groups, const std::string& own) {
    std::string line, path;
    for (std::ifstream file(own); std::getline(file, line);) {
        if (line.compare(0, 3, "0::") == 0) {
            path = line.substr(3);
        }
    }
    int quota_cores = 0;
    for (;; path.resize(path.rfind('/'))) {
        double quota, period;
        if (std::ifstream(groups + path + "/cpu.max") >> quota >> period && quota > 0 && period > 0) {
            const int cores = static_cast<int>(std::min(std::ceil(quota / period), double(kMaxThreads)));
            quota_cores = quota_cores ? std::min(quota_cores, cores) : cores;
        }
        if (path.find('/') == std::string::npos) {
            return quota_cores;
        }
    }
}

int default_threads() {
    static std::atomic<int> threads{0};  // several threads may find them
    if (!threads) {
        threads = find_default_threads();
    }
    return threads;
}

int threads_of_run(int requested) {
    if (requested < 0 || requested > kMaxThreads) {
        throw Error("threads must be from 1 to " + std::to_string(kMaxThreads) + ", or 0 for the default, not " +
                    std::to_string(requested));
    }
    if (!kHasThreads || Forking::instance().in_child()) {
        return 1;
    }
    return requested ? requested : default_threads();
}

}  // namespace bmx
