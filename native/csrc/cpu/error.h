// The one exception that leaves the library for a caller's mistake. The bindings turn it into dsx.errors.KernelError.
#pragma once

#include <stdexcept>

namespace dsx {

class CallError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace dsx
