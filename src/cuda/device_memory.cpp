// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/device.hpp"

namespace kvsieve::cuda {

std::shared_ptr<std::byte> allocate_device(std::size_t bytes, int device) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  if (bytes != 0) check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}

Tensor to_device(const Tensor& tensor, int device, std::shared_ptr<std::byte>& memory) {
  Tensor result = tensor;
  result.device = {DeviceType::cuda, device};
  if (!tensor.defined() || tensor.numel() == 0) return result;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.rank); ++i) {
    last += (tensor.shape[i] - 1) * tensor.stride[i];
  }
  const auto bytes = static_cast<std::size_t>(last + 1) * dtype_size(tensor.dtype);
  memory = allocate_device(bytes, device);
  copy(memory.get(), tensor.data, bytes);
  result.data = memory.get();
  return result;
}

void synchronize(int device) {
  const DeviceGuard guard(device);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace kvsieve::cuda
