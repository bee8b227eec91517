// A packed program, ready to run.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/common/mac_kind.h"
#include "kernels/dispatch.h"
#include "plan/layout.h"
#include "plan/plan.h"
#include "program/program.h"
#include "program/shapes.h"
#include "threads/thread_pool.h"

namespace bmx {

struct StepReport {
    std::string name;
    double seconds;
    int64_t macs;
    MacKind kind;
};

// Thread-safe.
class Engine {
  public:
    Engine(const int32_t* words, size_t count, Precision precision);
    ~Engine();

    const Program& program() const { return program_; }

    // threads: see threads_of_run. Throws Error if the run needs more memory than kMaxMemory or the environment
    // variable allows.
    void run(const InputSizes& sizes, const float* const* inputs, float* const* outputs, int threads) const;
    std::vector<StepReport> profile(const InputSizes& sizes, const float* const* inputs, float* const* outputs,
                                    int threads) const;
    int64_t working_memory(const InputSizes& sizes, int threads) const;

  private:
    struct Division;
    struct Workspace;
    class Lease;

    static std::vector<Division> divide(int64_t batch, int threads);
    void run_divided(const InputSizes& sizes, const float* const* inputs, float* const* outputs,
                     const Division& division, double* seconds) const;
    StepReport report(const Step& step, const std::vector<Value>& values, int64_t batch) const;

    Program program_;
    Plan plan_;
    std::shared_ptr<ThreadPool> pool_;
    const int64_t memory_limit_;                            // bytes of a run's working memory
    mutable std::vector<std::unique_ptr<Workspace>> free_;  // workspaces not in use
};

}  // namespace bmx
