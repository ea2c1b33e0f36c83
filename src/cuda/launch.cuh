// SPDX-License-Identifier: Apache-2.0
//
// Launching kernels: shared memory beyond the default is asked for once a device, and a kernel may overlap with the end
// of the one before it (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/launch_shape.hpp"

namespace kvsieve::cuda {

/// Asks for the most dynamic shared memory that kKernel may use on a device, and for clusters of more than 8 thread
/// blocks; only the first call costs anything.
template <auto kKernel>
void allow_shared_memory(std::size_t bytes, bool clusters, int device) {
  static std::atomic<std::uint64_t> allowed[8];  // a bit a device; 8 x 64 devices
  std::atomic<std::uint64_t>& word = allowed[(device / 64) % 8];
  const std::uint64_t bit = std::uint64_t{1} << (device % 64);
  if (device < 512 && (word.load(std::memory_order_relaxed) & bit) != 0) return;
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  if (clusters) {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
  }
  word.fetch_or(bit, std::memory_order_relaxed);
}

/// Enqueues kKernel. `max_shared_bytes` bounds shape.shared_bytes over all launches of the kernel.
template <auto kKernel, class... Arguments>
void launch(const char* name, const LaunchShape& shape, std::size_t max_shared_bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  if (max_shared_bytes > 32 * 1024) allow_shared_memory<kKernel>(max_shared_bytes, shape.clusters, shape.device);
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.overlaps_previous) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kKernel, arguments...), name);
}

}  // namespace kvsieve::cuda
