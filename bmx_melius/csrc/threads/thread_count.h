// Number of threads of a run.
#pragma once
#include <string>

namespace bmx {

constexpr int kMaxThreads = 1024;

#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__)
constexpr bool kHasThreads = false;
#else
constexpr bool kHasThreads = true;
#endif

// Returns the number of cores available to this process, by its affinity and the CPU quota of its control group, or the
// environment variable OMP_NUM_THREADS if that is less. Determined once, at first use.
int default_threads();

// Returns the number of threads for a request of `requested`, where 0 means the default: 1 where there are no threads.
// Throws Error if out of range.
int threads_of_run(int requested);

// Returns the smallest CPU quota of a control group (version 2) and its ancestors, in cores, rounded up; 0 if there is
// none. `groups`: the mount point of the control groups; `own`: a file like /proc/self/cgroup.
int quota_of(const std::string& groups, const std::string& own);

}  // namespace bmx
