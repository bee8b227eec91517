// Enlargement of maps: pixels repeated, or apart from each other with zeros between them.
#pragma once
#include "steps/step.h"

namespace bmx {

class UpsampleStep : public Step {
  public:
    UpsampleStep(Source source, const Attributes& attributes, int result, Slab output);
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    size_t row_bytes(const std::vector<Value>& values) const;

    Source source_;
    Attributes attributes_;
    int channels_, result_;
    Slab output_;
};

}  // namespace bmx
