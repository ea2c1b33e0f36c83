// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90/kernel.cuh"

namespace kvsieve::cuda::sm90 {

void launch_d256(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  launch_dim<256>(parameters, num_processors, stream);
}

KernelShape shape_d256(bool wide) { return shape_dim<256>(wide); }

}  // namespace kvsieve::cuda::sm90
