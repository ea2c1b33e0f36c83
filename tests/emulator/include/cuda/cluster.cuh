// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/cluster.cuh for the emulator.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "emulator/emulator.hpp"

namespace kvsieve::cuda {

using emulator::sync_cluster;

inline std::uint32_t map_to_rank(std::uint32_t shared_address, std::uint32_t rank) {
  return (shared_address & 0xFFFFFF) | rank << 24;
}
inline float4 load_remote_float4(std::uint32_t mapped) {
  return *static_cast<const float4*>(emulator::shared_pointer(mapped, sizeof(float4)));
}
inline float2 load_remote_float2(std::uint32_t mapped) {
  return *static_cast<const float2*>(emulator::shared_pointer(mapped, sizeof(float2)));
}

}  // namespace kvsieve::cuda
