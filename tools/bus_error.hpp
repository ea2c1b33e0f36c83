// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvsieve::tools {

/// While it lives, a SIGBUS ends the process with one line and the exit code for bad input: that signal is what reading
/// a mapped file past its end raises, when another process cuts the file while it is in use. One at a time.
class BusErrorGuard {
 public:
  explicit BusErrorGuard(const std::string& file);
  ~BusErrorGuard();
  BusErrorGuard(const BusErrorGuard&) = delete;
  BusErrorGuard& operator=(const BusErrorGuard&) = delete;
};

}  // namespace kvsieve::tools
