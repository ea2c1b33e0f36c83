// SPDX-License-Identifier: Apache-2.0
//
// Interface of the portable attend kernel (kernel.cuh), instantiated once per head dim in its own translation unit.
#pragma once

#include <cuda_runtime_api.h>

#include "attend/cuda/parameters.hpp"

namespace kvsieve::cuda {

/// Rows of (token, head) pairs that a thread block computes: 64, or 16 for decode.
enum class TileShape { rows_64, rows_16 };

void launch_attend_d64(const AttendParameters& parameters, TileShape shape, cudaStream_t stream);
void launch_attend_d128(const AttendParameters& parameters, TileShape shape, cudaStream_t stream);
void launch_attend_d256(const AttendParameters& parameters, TileShape shape, cudaStream_t stream);

}  // namespace kvsieve::cuda
