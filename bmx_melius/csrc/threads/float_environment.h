// Floating-point mode of a thread.
#pragma once
#include <cfenv>

namespace bmx {

// Sets the default mode for the lifetime of the object: rounding to nearest, and no flushing of denormal numbers to
// zero, which some programs and libraries switch on. Results would depend on it.
class DefaultFloatEnvironment {
  public:
    DefaultFloatEnvironment() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
    DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
    DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

  private:
    std::fenv_t before_;
};

}  // namespace bmx
