// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kvsieve/export.hpp"
#include "kvsieve/options.hpp"

namespace kvsieve {

/// One implementation of the attend stage, and whether it can run here.
struct PathInfo {
  Path path = Path::automatic;
  bool available = false;
  /// One line: what it uses ("AVX-512 with BF16 dot products, 16 threads"), or why it is not available.
  std::string detail;
};

/// What this build and this machine offer.
struct Info {
  std::string version;
  /// SIMD target that the CPU backend dispatches to, for example "AVX2".
  std::string simd_target;
  /// True when the CPU backend uses BF16 dot-product instructions for BF16 inputs.
  bool bf16_dot = false;
  int num_threads = 0;
  std::vector<std::string> devices;
  std::vector<PathInfo> paths;
};

KVSIEVE_API Info info();

/// "0.1.0"
KVSIEVE_API const char* version() noexcept;

}  // namespace kvsieve
