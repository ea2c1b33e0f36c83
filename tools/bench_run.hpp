// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvsieve::tools {

/// How the report of a suite came about.
struct BenchRun {
  std::string command;
  int num_threads = 0;
  bool quick = false;
};

}  // namespace kvsieve::tools
