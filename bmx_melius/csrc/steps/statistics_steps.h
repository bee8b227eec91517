// Steps that reduce a map to statistics of it: global max pooling, and normalization by its own mean and variance.
#pragma once
#include "steps/step.h"

namespace bmx {

class GlobalMaxStep : public Step {
  public:
    GlobalMaxStep(Source source, Slab output);
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Source source_;
    Slab output_;
};

// Subtracts the mean of each group of channels and divides by the square root of its variance + eps.
class NormalizeStep : public Step {
  public:
    NormalizeStep(Source source, const Attributes& attributes, float eps, Slab output);
    // The map is copied to the output, then changed there.
    int phases(const std::vector<Value>&, int) const override { return 2; }
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    void normalize(float* x, int64_t pixels, ptrdiff_t stride) const;

    Source source_;
    Attributes attributes_;
    double eps_;
    int channels_;
    Slab output_;
};

}  // namespace bmx
