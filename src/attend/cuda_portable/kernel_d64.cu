// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_portable/kernel.cuh"

namespace kvsieve::cuda {

void launch_attend_d64(const AttendParameters& parameters, TileShape shape, cudaStream_t stream) {
  launch_attend<64>(parameters, shape, stream);
}

}  // namespace kvsieve::cuda
