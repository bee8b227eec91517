// Exception for user errors; the message is a single line.
#pragma once
#include <stdexcept>
#include <string>

namespace bmx {

class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace bmx
