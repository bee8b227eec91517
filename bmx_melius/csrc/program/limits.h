// Resource limits of programs, the same as in deployment/program/limits.py, which documents them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bmx {

constexpr bool kWide = sizeof(size_t) >= 8;  // false in WebAssembly, whose addresses have 32 bits

// Limits of a value or an operation.
constexpr int kMaxChannels = 1 << 20;
constexpr int kMaxSize = 1 << 16;
constexpr int64_t kMaxElements = int64_t(1) << (kWide ? 31 : 24);
constexpr int64_t kMaxWeights = 1 << 23;
constexpr int kMaxOperands = 1 << 12;

// Limits of a program.
constexpr int kMaxInputs = 1 << 12;
constexpr int kMaxOperations = 1 << 16;
constexpr int kMaxOutputs = 1 << 12;
constexpr int64_t kMaxAllOperands = 1 << 18;
constexpr int64_t kMaxAllGroups = 1 << 18;
constexpr int64_t kMaxAllWeights = 1 << 30;
constexpr int kFilterBlock = 64;
constexpr int64_t kRepeatedWords = 1 << 12;
constexpr int64_t kRepeatedPerStored = 16;

// Limits of a run; the default of the environment variable.
constexpr int64_t kMaxMemory = int64_t(1) << (kWide ? 32 : 30);
constexpr const char* kMemoryVariable = "BMX_MELIUS_MEMORY_LIMIT";

}  // namespace bmx
