// How many threads a run has.
#pragma once
#include <string>

namespace bmx {

constexpr int kMostThreads = 1024;

// The cores that this process may use, as its affinity and the CPU quota of its control group say, or fewer where the
// environment variable OMP_NUM_THREADS says so. Is found out once, at first use.
int default_threads();

// The threads of a run for which `wanted` are asked for, 0 for the default. Throws Error for an impossible number.
int threads_of_run(int wanted);

// The CPU quota in whole cores, rounded up, of a control group (version 2) or of one that it is in; 0 if there is none.
// `groups`: the folder they are mounted at; `own`: a file like /proc/self/cgroup.
int quota_of(const std::string& groups, const std::string& own);

}  // namespace bmx
