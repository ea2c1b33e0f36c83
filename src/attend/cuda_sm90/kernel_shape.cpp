// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include "attend/cuda_sm90/kernel.hpp"

namespace kvsieve::cuda::sm90 {
namespace {

constexpr int max_devices = 64;
constexpr int num_kernels = 12;  // three head dims, wide or not, FP8 or not

struct Known {
  std::once_flag once;
  KernelShape shape;
};

KernelShape ask(std::int64_t head_dim, bool wide, bool f8, int device, int num_processors) {
  if (head_dim == 64) return shape_d64(wide, f8, device, num_processors);
  return head_dim == 128 ? shape_d128(wide, f8, device, num_processors) : shape_d256(wide, f8, device, num_processors);
}

}  // namespace

const KernelShape& kernel_shape(std::int64_t head_dim, bool wide, bool f8, int device, int num_processors) {
  static Known known[max_devices][num_kernels];
  const int kernel = (head_dim == 64 ? 0 : head_dim == 128 ? 4 : 8) + (wide ? 2 : 0) + (f8 ? 1 : 0);
  Known& entry = known[device % max_devices][kernel];
  std::call_once(entry.once, [&] { entry.shape = ask(head_dim, wide, f8, device, num_processors); });
  return entry.shape;
}

}  // namespace kvsieve::cuda::sm90
