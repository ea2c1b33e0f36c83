// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90_decode/kernel.cuh"

namespace kvsieve::cuda::decode {

void launch_d128(const Parameters& parameters, cudaStream_t stream) { launch_dim<128>(parameters, stream); }

ActiveClusters ask_active_clusters(int device) { return clusters_dim<128>(device); }

}  // namespace kvsieve::cuda::decode
