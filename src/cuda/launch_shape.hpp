// SPDX-License-Identifier: Apache-2.0
//
// How a kernel is launched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsieve::cuda {

struct LaunchShape {
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
  int device = 0;
  int cluster = 1;        ///< thread blocks of a cluster
  bool clusters = false;  ///< some launch of the kernel has clusters
  /// The kernel calls wait_for_previous_kernel() before it touches what an earlier kernel writes or reads.
  bool overlaps_previous = false;
};

}  // namespace kvsieve::cuda
