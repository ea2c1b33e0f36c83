// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90_decode/kernel.cuh"

namespace kvsieve::cuda::decode {

void launch_d256(const Parameters& parameters, cudaStream_t stream) { launch_dim<256>(parameters, stream); }

}  // namespace kvsieve::cuda::decode
