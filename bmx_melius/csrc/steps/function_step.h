// Steps that consist of one function, which needs no class.
#pragma once
#include <utility>

#include "steps/step.h"

namespace bmx {

struct NoScratch {
    size_t operator()(const std::vector<Value>&, int /*threads*/) const { return 0; }
};

template <class Run, class Scratch>
class FunctionStep : public Step {
  public:
    FunctionStep(Run run, Scratch scratch, int phases)
        : run_(std::move(run)), scratch_(std::move(scratch)), phases_(phases) {}

    int phases(const std::vector<Value>&, int) const override { return phases_; }
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override {
        return scratch_(values, threads);
    }
    void run(const Memory& memory, const Team& team, int phase) const override { run_(memory, team, phase); }

  private:
    Run run_;
    Scratch scratch_;
    int phases_;
};

// Returns the step whose functions `run` and `scratch_bytes` are these.
template <class Run, class Scratch = NoScratch>
StepPtr function_step(Run run, Scratch scratch_bytes = {}, int phases = 1) {
    return std::make_unique<FunctionStep<Run, Scratch>>(std::move(run), std::move(scratch_bytes), phases);
}

}  // namespace bmx
