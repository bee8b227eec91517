// Work of a run, as it is distributed to threads.
#pragma once
#include <atomic>
#include <vector>

#include "plan/layout.h"
#include "plan/plan.h"
#include "threads/thread_team.h"

namespace bmx {

// Addresses of the images of a batch in the user's arrays.
class Images {
  public:
    Images(const Program& program, const std::vector<Value>& values, int64_t batch, const float* const* inputs,
           float* const* outputs);

    const float* const* inputs(int64_t image) const { return inputs_.data() + image * inputs_each_; }
    float* const* outputs(int64_t image) const { return outputs_.data() + image * outputs_each_; }

  private:
    size_t inputs_each_, outputs_each_;
    std::vector<const float*> inputs_;
    std::vector<float*> outputs_;
};

// The steps for one image at a time; the threads of a team share each step.
class ImageWork : public PhasedWork {
  public:
    // `seconds`: array to which the time of each step is added, or nullptr.
    ImageWork(const Plan& plan, const Layout& layout, int threads, uint8_t* arena, double* seconds);

    void choose(const Images& images, int64_t image);
    int phases() const override { return static_cast<int>(phases_.size()); }
    void run(int phase, int part) noexcept override;
    void ended(int phase) noexcept override;

  private:
    struct Phase {
        size_t step;
        int phase;  // within the step
    };

    const std::vector<std::unique_ptr<Step>>& steps_;
    const Layout& layout_;
    Memory memory_;
    int threads_;
    double* seconds_;
    double begin_ = 0;
    std::vector<Phase> phases_;
};

// Images `begin` to `end` - 1 of a batch; each image is computed by one thread.
class BatchWork : public PhasedWork {
  public:
    // `works`: one element for each thread.
    BatchWork(const Images& images, int64_t begin, int64_t end, std::vector<ImageWork>& works)
        : images_(images), end_(end), works_(works), next_(begin) {}

    int phases() const override { return 1; }
    void run(int phase, int part) noexcept override;

  private:
    const Images& images_;
    const int64_t end_;
    std::vector<ImageWork>& works_;
    std::atomic<int64_t> next_;
};

}  // namespace bmx
