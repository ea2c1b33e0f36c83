// SPDX-License-Identifier: Apache-2.0
//
// What the attend kernels take: the problem, its routes, and where the states of split rows go.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/problem.hpp"
#include "route/route_cuda.hpp"

namespace kvsieve::cuda {

/// States of split rows, for (row, head, split) at (row * Hq + head) * num_splits + split.
struct DevicePartials {
  float* out = nullptr;  ///< [..., D], normalised; null when the call is not split
  float* lse = nullptr;
  float* lse_t = nullptr;  ///< null when not asked for
  std::int64_t num_splits = 1;
};

struct AttendParameters {
  AttentionProblem problem;
  DeviceRoutes routes;
  DevicePartials partials;
  int device = 0;
  int block_shift = 0;   ///< log2 of the block size
  bool aligned = false;  ///< K and V can be read eight elements at a time
};

}  // namespace kvsieve::cuda
