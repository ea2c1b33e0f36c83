// SPDX-License-Identifier: Apache-2.0
#include "attend/cuda_sm90/kernel.hpp"

namespace kvsieve::cuda::sm90 {

KernelShape kernel_shape(std::int64_t head_dim, bool wide) {
  if (head_dim == 64) return shape_d64(wide);
  return head_dim == 128 ? shape_d128(wide) : shape_d256(wide);
}

}  // namespace kvsieve::cuda::sm90
