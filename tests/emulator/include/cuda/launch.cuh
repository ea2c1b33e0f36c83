// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/launch.cuh for the emulator: a launch runs the kernel to its end.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/launch_shape.hpp"
#include "emulator/calls.hpp"
#include "emulator/emulator.hpp"

namespace kvsieve::cuda {

template <auto kKernel, class... Arguments>
void launch(const char*, const LaunchShape& shape, std::size_t max_shared_bytes, cudaStream_t,
            const Arguments&... arguments) {
  if (shape.shared_bytes > max_shared_bytes) emulator::fail("a launch with more shared memory than it said");
  static std::uint64_t launches = 0;
  emulator::Grid grid;
  grid.blocks = shape.blocks;
  grid.threads = shape.threads;
  grid.cluster = shape.cluster;
  grid.shared_bytes = shape.shared_bytes;
  grid.seed = ++launches << 20;
  emulator::run(grid, [&] { kKernel(arguments...); });
}

/// As if all processors were one cluster of processors.
template <auto kKernel>
int active_clusters(const LaunchShape& shape) {
  return emulator::num_processors / shape.cluster;
}

}  // namespace kvsieve::cuda
