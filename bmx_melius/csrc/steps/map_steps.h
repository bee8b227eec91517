// Steps around the convolutions: input, output, pooling, and pixel-wise operations.
#pragma once
#include "steps/pooling.h"

namespace bmx {

// Copies the user's NCHW map or vector to a buffer of float32.
class InputStep : public Step {
  public:
    InputStep(const FloatKernels* kernels, int input, Slab output);
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    const FloatKernels* kernels_;
    int input_;
    Slab output_;
};

// Copies a value to the user's NCHW map or vector.
class OutputStep : public Step {
  public:
    OutputStep(const FloatKernels* kernels, Source source, int output);
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    const FloatKernels* kernels_;
    Source source_;
    int output_;
};

// Normalization, max pooling and ReLU, each optional, to a buffer of float32.
class PoolStep : public Step {
  public:
    PoolStep(const FloatKernels* kernels, Source source, const PoolWindow& window, Normalization normalization,
             int result, Slab output);
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    const FloatKernels* kernels_;
    Source source_;
    PoolWindow window_;
    Normalization normalization_;
    int result_;
    Slab output_;
};

class AveragePoolStep : public Step {
  public:
    AveragePoolStep(Source source, const Attributes& attributes, int result, Slab output);
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Source source_;
    Attributes attributes_;
    int channels_, result_;
    Slab output_;
};

// Global average pooling, after optional normalization and ReLU.
class GlobalPoolStep : public Step {
  public:
    GlobalPoolStep(const FloatKernels* kernels, Source source, Normalization normalization, Slab output);
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    const FloatKernels* kernels_;
    Source source_;
    Normalization normalization_;
    int channels_;
    Slab output_;
};

class FlattenStep : public Step {
  public:
    FlattenStep(Source source, Slab output);
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Source source_;
    Slab output_;
};

// Base of steps that process a map row by row: the rows of one or two values, as float32 with contiguous channels, are
// modified in place.
class RowStep : public Step {
  public:
    RowStep(std::vector<Source> sources, Slab output);
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;

  protected:
    // Modifies `pixels` pixels x. y is the second value, or working memory of the size of x.
    virtual void change(float* x, float* y, int pixels, int channels) const = 0;

  private:
    size_t row_bytes(const std::vector<Value>& values) const;

    std::vector<Source> sources_;
    int channels_;
    Slab output_;
};

class CopyStep : public RowStep {
  public:
    using RowStep::RowStep;

  protected:
    void change(float*, float*, int, int) const override {}
};

class AddStep : public RowStep {
  public:
    using RowStep::RowStep;

  protected:
    void change(float* x, float* y, int pixels, int channels) const override;
};

class ShuffleStep : public RowStep {
  public:
    ShuffleStep(const Source& source, int groups, Slab output) : RowStep({source}, output), groups_(groups) {}

  protected:
    void change(float* x, float* y, int pixels, int channels) const override;

  private:
    int groups_;
};

// Computes bits as the integers 0 and 1.
class ThresholdStep : public RowStep {
  public:
    ThresholdStep(const Source& source, std::vector<float> thresholds, std::vector<uint32_t> flips, Slab output)
        : RowStep({source}, output), thresholds_(std::move(thresholds)), flips_(std::move(flips)) {}

  protected:
    void change(float* x, float* y, int pixels, int channels) const override;

  private:
    std::vector<float> thresholds_;
    std::vector<uint32_t> flips_;
};

class ExpandStep : public RowStep {
  public:
    ExpandStep(const Source& source, int low, Slab output) : RowStep({source}, output), low_(low) {}

  protected:
    void change(float* x, float* y, int pixels, int channels) const override;

  private:
    int low_;
};

}  // namespace bmx
