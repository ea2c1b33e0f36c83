// SPDX-License-Identifier: Apache-2.0
//
// What the roles of the Hopper attend kernel share: sizes, the map of the shared memory, barriers, units of work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attend/cuda_sm90/kernel.hpp"
#include "cuda/barrier.cuh"
#include "route/route_device.cuh"

namespace kvsieve::cuda::sm90 {

/// Rows that attend to some and to all of 32 keys. A chunk has one for each 32 of its keys.
struct alignas(8) KeysSummary {
  std::uint32_t some, all;
};

/// A tile's place in the ring of slots, and the parity of its barriers' phases.
template <int kSlots>
struct RingPosition {
  std::uint32_t slot = 0;
  std::uint32_t phase = 0;
  __device__ RingPosition next() const {
    return slot + 1 == kSlots ? RingPosition{0, phase ^ 1} : RingPosition{slot + 1, phase};
  }
};

template <class T_, int kDim, bool kF8, int kWarpgroups>
struct Traits {
  using T = T_;  ///< arithmetic type of the products
  static constexpr int dim = kDim;
  static constexpr bool f8 = kF8;
  static constexpr int warpgroups = kWarpgroups;  ///< consumers
  static constexpr int threads = 128 * (warpgroups + 1);
  static constexpr int blocks_per_processor = warpgroups == 1 && kDim <= 128 ? 2 : 1;
  static constexpr int chunk = warpgroups > 1 && kDim <= 128 ? 128 : 64;  ///< keys of a step
  static constexpr int slots = kDim == 256 ? 4 : kDim == 128 ? 5 : blocks_per_processor == 2 ? 8 : 10;

  // Registers a thread: what the launch gives all threads, shifted from the producer to the consumers.
  static constexpr bool shifts_registers = warpgroups > 1 || kDim <= 128;
  static constexpr int consumer_registers = warpgroups == 1 ? 168 : !kF8 ? 232 : kDim == 256 ? 208 : 192;
  static constexpr int producer_registers = warpgroups == 1 ? 88 : !kF8 ? 40 : kDim == 256 ? 88 : 120;

  // Shared memory, in bytes: queries [warpgroup][panel][64 rows][128], slots [slot][panel][chunk rows][128] (panels are
  // as wgmma.cuh says), then the small things. The table of an in-block route lies over the slots, before they are
  // used; the states of split tiles lie over the slots, after.
  static constexpr int panels = kDim / 64;
  static constexpr int query_panel = 64 * 128;
  static constexpr int queries = panels * query_panel;  ///< of a warpgroup
  static constexpr int slot_panel = chunk * 128;
  static constexpr int slot = panels * slot_panel;
  static constexpr int member_buffers = 8;  ///< chunks whose members may still be looked at; more than slots / 2 + 2
  static constexpr int queries_at = 0;
  static constexpr int slots_at = queries_at + warpgroups * queries;
  static constexpr int members_at = slots_at + slots * slot;
  static constexpr int summaries_at = members_at + member_buffers * chunk * 4;
  static constexpr int sources_at = summaries_at + member_buffers * (chunk / 4);
  static constexpr int barriers_at = sources_at + 2 * 2 * chunk * 8;
  static constexpr int route_at = barriers_at + (2 * slots + 2) * 8;
  using Route = TileRoute<threads>;
  static constexpr int route_bytes = (static_cast<int>(sizeof(Route)) + 15) / 16 * 16;
  static constexpr int rows_at = (route_at + 15) / 16 * 16 + route_bytes;
  static constexpr int count_at = rows_at + 32 * static_cast<int>(sizeof(DeviceRow));
  static constexpr int entries_at = count_at + 16;
  static constexpr int most_bytes = blocks_per_processor == 2 ? 113 * 1024 : 227 * 1024;
  static constexpr int route_entries = std::min(2240, (most_bytes - entries_at) / 16);
  static constexpr int bytes = entries_at + route_entries * 16;
  static constexpr int route_slots = slots * slot >= 3 * 4 * 4096 ? 4096 : 2048;  ///< of a hash table
  static constexpr int route_words = slots * slot / 4;                            ///< of a dense table
  static_assert(route_entries >= 192 && slots * slot >= 3 * 4 * route_slots);
  static_assert(warpgroups * 64 * kDim * 4 <= slots * slot, "states of split tiles fit over the slots");
  static_assert(member_buffers > slots / 2 + 2);
};

/// The barriers of a thread block: full and empty of each slot, then of the queries.
template <class Traits>
struct Barriers {
  std::uint32_t base;
  __device__ Barrier full(std::uint32_t slot) const { return {base + slot * 8}; }
  __device__ Barrier empty(std::uint32_t slot) const { return {base + (Traits::slots + slot) * 8}; }
  __device__ Barrier queries_full() const { return {base + 2 * Traits::slots * 8}; }
  __device__ Barrier queries_empty() const { return {base + (2 * Traits::slots + 1) * 8}; }

  /// By one thread. Every thread of the producer arrives, and one of each warp of the consumers.
  __device__ void init() const {
    for (int s = 0; s < Traits::slots; ++s) {
      full(s).init(128);
      empty(s).init(4 * Traits::warpgroups);
    }
    queries_full().init(128);
    queries_empty().init(4 * Traits::warpgroups);
    fence_barrier_init();
  }
};

/// One tile of one KV head, and this thread block's share of its keys.
struct Work {
  std::uint32_t tile;
  std::int64_t row_begin;
  std::int32_t kv_head;
  std::int32_t num_rows;  ///< query rows
  const DeviceRouteEntry* entries;
  const DeviceRow* rows;
  std::int32_t num_entries;
  std::int32_t begin, end;  ///< chunks of keys

  /// Long tiles (late tokens) come first; the KV head changes slowest, so that thread blocks that run at the same time
  /// share a head's keys in L2.
  __device__ Work(const Parameters& p, std::uint32_t index, std::nullptr_t) {
    const DeviceRoutes& routes = p.attend.routes;
    const auto num_tiles = static_cast<std::uint32_t>(routes.num_tiles);
    kv_head = static_cast<std::int32_t>(index / num_tiles);
    tile = num_tiles - 1 - (index - kv_head * num_tiles);
    row_begin = tile * routes.tile_rows;
    num_rows = static_cast<std::int32_t>(min(routes.tile_rows, p.attend.problem.total_q - row_begin));
  }

  /// With its route: from `in_block`, this thread block's shared memory, when not null, else from the workspace.
  template <class Traits>
  __device__ Work(const Parameters& p, std::uint32_t index, const unsigned char* in_block, Traits)
      : Work(p, index, nullptr) {
    const DeviceRoutes& routes = p.attend.routes;
    if (in_block != nullptr) {
      entries = reinterpret_cast<const DeviceRouteEntry*>(in_block + Traits::entries_at);
      rows = reinterpret_cast<const DeviceRow*>(in_block + Traits::rows_at);
      num_entries = *reinterpret_cast<const std::int32_t*>(in_block + Traits::count_at);
    } else {
      const std::int64_t route = tile * routes.num_lists + (routes.num_lists == 1 ? 0 : kv_head);
      entries = routes.entries + route * routes.capacity;
      rows = routes.rows + row_begin;
      num_entries = routes.counts[route];
    }
    constexpr int chunk = Traits::chunk;
    const std::uint32_t chunks =
        ((static_cast<std::uint32_t>(num_entries) << p.attend.block_shift) + chunk - 1) / chunk;
    const std::uint32_t split = blockIdx.x & (p.schedule.splits - 1);  // a power of two
    begin = static_cast<std::int32_t>(chunks * split >> p.schedule.split_shift);
    end = static_cast<std::int32_t>(chunks * (split + 1) >> p.schedule.split_shift);
  }
};

/// Work of this thread block: first, first + stride, ... A cluster has one piece of work, and so has a thread block
/// that builds its own route.
__device__ __forceinline__ std::uint32_t first_work(const Parameters& p) {
  return blockIdx.x >> p.schedule.split_shift;
}
__device__ __forceinline__ std::uint32_t work_stride(const Parameters& p) {
  return gridDim.x >> p.schedule.split_shift;
}
__device__ __forceinline__ std::uint32_t num_works(const Parameters& p) {
  return static_cast<std::uint32_t>(p.attend.routes.num_tiles * p.attend.problem.num_kv_heads);
}

}  // namespace kvsieve::cuda::sm90
