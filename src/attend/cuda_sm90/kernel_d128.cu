// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90/kernel.cuh"

namespace kvsieve::cuda::sm90 {

void launch_d128(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  launch_dim<128>(parameters, num_processors, stream);
}

KernelShape shape_d128(bool wide) { return shape_dim<128>(wide); }

}  // namespace kvsieve::cuda::sm90
