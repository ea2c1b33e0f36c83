// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the decode kernel share: sizes of a kernel, the entries of its route, the layout of its tiles.
#pragma once

#include <cstdint>

#include "attend/cuda_sm90_decode/kernel.hpp"
#include "attend/cuda_sm90_decode/shared_map.hpp"
#include "cuda/barrier.cuh"
#include "cuda/ptx.cuh"
#include "route/narrow_route.cuh"

namespace kvsieve::cuda::decode {

inline constexpr int threads = 32 * warps;
inline constexpr int blocks_per_processor = 2;
using Route = NarrowRoute<threads>;
static_assert(sizeof(Route) <= SharedMap::route_bytes);

/// A selected block of the tile once it is located, in the place of its DeviceRouteEntry.
struct alignas(16) KeyBlock {
  std::int64_t offset;    ///< of its first key's row, in elements of K and V
  std::int32_t position;  ///< of its first key
  std::uint32_t members;  ///< bit t: row t of the tile selected it
};
static_assert(sizeof(KeyBlock) == sizeof(DeviceRouteEntry));

/// `T`: what K and V are multiplied in: their own 16-bit type; f16, which holds every FP8 number, for FP8.
/// `kRowTiles`: 16 rows each that a warp has.
template <class T_, int kDim, bool kF8, int kRowTiles>
struct Traits {
  using T = T_;
  static constexpr int dim = kDim;
  static constexpr bool f8 = kF8;
  static constexpr int row_tiles = kRowTiles;
  static constexpr int warp_rows = 16 * kRowTiles;
  static constexpr int element_bytes = kF8 ? 1 : 2;
  static constexpr int row_bytes = kDim * element_bytes;
  static constexpr int pieces = row_bytes / 16;  ///< 16-byte pieces of a key's row
  static constexpr int tile_bytes = unit_keys * row_bytes;
  static constexpr int pass_rows = 32 / pieces;  ///< rows that a warp copies at a time
  static constexpr int passes = unit_keys / pass_rows;

  /// Where a piece of a key's row lies in a tile. Eight lanes that read the same piece of eight rows, or that read
  /// pieces 2t or t of two neighbouring rows (t = 0..3), as the products' operands are read, meet all banks once.
  __device__ static std::uint32_t place(int row, int piece) {
    int swizzle = row & 7;
    if constexpr (kF8) swizzle = pieces == 4 ? row >> 1 & 3 : (row & 1) << 2 | (row >> 1 & 3);
    return static_cast<std::uint32_t>(row * row_bytes + (piece ^ swizzle) * 16);
  }
};

/// The full and empty barriers of the rings, whose slots are counted through. Full: every thread that copies arrives
/// when its copies have landed. Empty: one thread of each warp that reads the ring.
struct Barriers {
  std::uint32_t base;
  __device__ Barrier full(int slot) const { return {base + static_cast<std::uint32_t>(slot * 8)}; }
  __device__ Barrier empty(int slot) const { return full(max_slots + slot); }

  /// By one warp.
  __device__ void init(const Schedule& schedule) const {
    for (int i = static_cast<int>(threadIdx.x) % 32; i < schedule.key_warps * schedule.slots; i += 32) {
      full(i).init(static_cast<std::uint32_t>(schedule.row_warps) * 32);
      empty(i).init(static_cast<std::uint32_t>(schedule.row_warps));
    }
    fence_barrier_init();
  }
};

/// This thread block's tile of one KV head, and its share of the tile's keys in units of 16.
struct Work {
  std::int64_t row_begin;
  std::int32_t num_rows;  ///< query rows
  std::int32_t kv_head;
  std::uint32_t split;

  __device__ explicit Work(const Parameters& p) {
    const auto heads = static_cast<std::uint32_t>(p.attend.problem.num_kv_heads);
    const std::uint32_t index = blockIdx.x >> p.schedule.split_shift;
    const std::uint32_t tile = index / heads;
    kv_head = static_cast<std::int32_t>(index - tile * heads);
    split = blockIdx.x - (index << p.schedule.split_shift);
    row_begin = tile * p.attend.routes.tile_rows;
    num_rows = static_cast<std::int32_t>(min(p.attend.routes.tile_rows, p.attend.problem.total_q - row_begin));
  }
};

/// Units of 16 keys from `begin` to before `end`.
struct Units {
  std::int32_t begin, end;

  /// Those of shares `first` to before `last`, of 2^shift shares of a route of `entries` blocks.
  __device__ Units(const Parameters& p, std::int32_t entries, std::uint32_t first, std::uint32_t last) {
    const std::uint32_t units =
        ((static_cast<std::uint32_t>(entries) << p.attend.block_shift) + unit_keys - 1) / unit_keys;
    begin = static_cast<std::int32_t>(units * first >> p.schedule.share_shift);
    end = static_cast<std::int32_t>(units * last >> p.schedule.share_shift);
  }
};

}  // namespace kvsieve::cuda::decode
