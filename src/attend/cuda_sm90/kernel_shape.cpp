// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include "attend/cuda_sm90/kernel.hpp"

namespace kvsieve::cuda::sm90 {
namespace {

constexpr int max_devices = 64;
constexpr int num_kernels = 6;  // three head dims, wide or not

struct Known {
  std::once_flag once;
  KernelShape shape;
};

KernelShape ask(std::int64_t head_dim, bool wide, int device, int num_processors) {
  if (head_dim == 64) return shape_d64(wide, device, num_processors);
  return head_dim == 128 ? shape_d128(wide, device, num_processors) : shape_d256(wide, device, num_processors);
}

}  // namespace

const KernelShape& kernel_shape(std::int64_t head_dim, bool wide, int device, int num_processors) {
  static Known known[max_devices][num_kernels];
  const int kernel = (head_dim == 64 ? 0 : head_dim == 128 ? 2 : 4) + (wide ? 1 : 0);
  Known& entry = known[device % max_devices][kernel];
  std::call_once(entry.once, [&] { entry.shape = ask(head_dim, wide, device, num_processors); });
  return entry.shape;
}

}  // namespace kvsieve::cuda::sm90
