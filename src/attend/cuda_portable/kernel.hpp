// SPDX-License-Identifier: Apache-2.0
//
// Interface of the portable attend kernel (kernel.cuh), instantiated once per head dim in its own translation unit.
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
  int block_shift = 0;   ///< log2 of the block size
  bool aligned = false;  ///< every row of K and V starts at a multiple of 16 bytes
};

/// Rows of (token, head) pairs that a thread block computes: 64, or 16 for decode.
enum class TileShape { rows_64, rows_16 };

void launch_attend_d64(const AttendParameters& parameters, TileShape shape, cudaStream_t stream);
void launch_attend_d128(const AttendParameters& parameters, TileShape shape, cudaStream_t stream);
void launch_attend_d256(const AttendParameters& parameters, TileShape shape, cudaStream_t stream);

}  // namespace kvsieve::cuda
