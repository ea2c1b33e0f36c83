// SPDX-License-Identifier: Apache-2.0
//
// Thread block clusters (compute capability 9.0): barriers, and reads of another thread block's shared memory.
#pragma once

#include <cstdint>

namespace kvsieve::cuda {

/// A barrier of all threads of the cluster, which orders their shared-memory accesses.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The address in thread block `rank` of what lies at `shared_address` in this one.
__device__ __forceinline__ std::uint32_t map_to_rank(std::uint32_t shared_address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared_address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ float4 load_remote_float4(std::uint32_t mapped) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(mapped)
               : "memory");
  return value;
}
__device__ __forceinline__ float2 load_remote_float2(std::uint32_t mapped) {
  float2 value;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(mapped) : "memory");
  return value;
}

}  // namespace kvsieve::cuda
