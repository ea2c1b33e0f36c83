// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "attend/cuda_sm90_decode/kernel.hpp"
#include "attend/cuda_sm90_decode/shared_map.hpp"

namespace kvsieve::cuda::decode {

Schedule make_schedule(HeadGroup group, std::int64_t rows, std::int64_t capacity, std::int64_t row_bytes, int splits) {
  Schedule s;
  s.group = group;
  s.warp_rows = rows <= warps * 16 ? 16 : 32;
  s.row_warps = static_cast<int>((rows + s.warp_rows - 1) / s.warp_rows);
  s.key_warps = warps / s.row_warps;
  s.splits = splits;
  s.split_shift = std::countr_zero(static_cast<unsigned>(splits));
  s.share_shift = s.split_shift + std::countr_zero(static_cast<unsigned>(s.key_warps));
  const SharedMap map(static_cast<int>(capacity));
  s.last_at = map.last_at;
  s.rings_at = map.rings_at;
  const int tile_bytes = unit_keys * static_cast<int>(row_bytes);
  s.slots = std::min(max_slots / s.key_warps, (shared_bytes - map.rings_at) / s.key_warps / tile_bytes);
  return s;
}

}  // namespace kvsieve::cuda::decode
