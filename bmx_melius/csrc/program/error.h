// What goes wrong by a user's doing: one clear line.
#pragma once
#include <stdexcept>
#include <string>

namespace bmx {

class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace bmx
