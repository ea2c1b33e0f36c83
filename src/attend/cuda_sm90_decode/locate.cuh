// SPDX-License-Identifier: Apache-2.0
//
// From the union of a tile's selections to where its keys lie, for this thread block's share of them.
#pragma once

#include "attend/cuda_sm90_decode/traits.cuh"

namespace kvsieve::cuda::decode {

/// Locates the blocks of units [begin, end), and ends the last unit with blocks without a key. `last[i]`: the last key
/// of block i that some member may see, counted from its first; -1 where there is none.
__device__ inline void locate_blocks(const Parameters& p, const Work& work, const Route& route, Units units,
                                     std::int32_t count, unsigned char* shared) {
  auto* const entries = reinterpret_cast<DeviceRouteEntry*>(shared + SharedMap::entries_at);
  auto* const blocks = reinterpret_cast<KeyBlock*>(entries);
  auto* const last = reinterpret_cast<std::int32_t*>(shared + p.schedule.last_at);
  const KvCache& cache = p.attend.problem.k;  // V has the same strides
  if (units.begin >= units.end) return;
  const std::int32_t begin = units.begin * unit_keys >> p.attend.block_shift;
  const std::int32_t end = ((units.end * unit_keys - 1) >> p.attend.block_shift) + 1;
  for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += threads) {
    KeyBlock block{0, 0, 0};
    std::int32_t reach = -1;
    if (i < count) {
      const DeviceRouteEntry entry = entries[i];
      const int member = __ffs(static_cast<int>(entry.members)) - 1;
      const BlockLocation place =
          locate_block(p.attend.problem, p.attend.routes, route.rows[member].request, entry.block);
      if (place.page >= 0) {
        block.offset =
            place.page * cache.stride_page + place.slot * cache.stride_token + work.kv_head * cache.stride_head;
        block.position = entry.block << p.attend.block_shift;
        block.members = entry.members;
#pragma unroll 1
        for (std::uint32_t left = entry.members; left != 0; left &= left - 1) {
          reach = max(reach, route.rows[__ffs(static_cast<int>(left)) - 1].limit - block.position);
        }
      }
    }
    blocks[i] = block;
    last[i] = reach;
  }
}

}  // namespace kvsieve::cuda::decode
