// SPDX-License-Identifier: Apache-2.0
//
// What the roles of the Hopper attend kernel share: sizes, the map of the shared memory, barriers.
#pragma once

#include <cstdint>

#include "attend/cuda_sm90/kernel.hpp"
#include "cuda/barrier.cuh"
#include "route/route_cuda.hpp"

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

template <class T_, int kDim, bool kF8>
struct Traits {
  using T = T_;  ///< arithmetic type of the products
  static constexpr int dim = kDim;
  static constexpr bool f8 = kF8;
  static constexpr int threads = 128 * (warpgroups + 1);
  static constexpr int chunk = kDim <= 128 ? 128 : 64;  ///< keys of a step
  static constexpr int slots = kDim == 256 ? (kF8 ? 3 : 4) : kDim == 128 ? (kF8 ? 4 : 5) : (kF8 ? 6 : 10);
  /// FP8 tiles on their way, as they are in the cache; the producer widens them into slots.
  static constexpr int stages = kF8 ? 3 : 0;

  /// Consumers issue the products of a step one after the other, so that one's softmax falls into the other's products.
  static constexpr bool takes_turns = true;

  // Registers a thread: what the launch gives all threads, shifted from the producer to the consumers.
  static constexpr int consumer_registers = 216;
  static constexpr int producer_registers = 504 - 2 * consumer_registers;

  // Shared memory, in bytes: queries [warpgroup][panel][64 rows][128], slots [slot][panel][chunk rows][128] (panels are
  // as wgmma.cuh says), stages [stage][chunk][dim], then the small things.
  static constexpr int panels = kDim / 64;
  static constexpr int query_panel = 64 * 128;
  static constexpr int queries = panels * query_panel;  ///< of a warpgroup
  static constexpr int slot_panel = chunk * 128;
  static constexpr int slot = panels * slot_panel;
  static constexpr int stage = chunk * kDim;
  /// Chunks whose members may still be looked at, or are already found: more than (slots + stages) / 2 + 2.
  static constexpr int member_buffers = 8;
  static constexpr int queries_at = 0;
  static constexpr int slots_at = queries_at + warpgroups * queries;
  static constexpr int stages_at = slots_at + slots * slot;
  static constexpr int members_at = stages_at + stages * stage;
  static constexpr int summaries_at = members_at + member_buffers * chunk * 4;
  static constexpr int sources_at = summaries_at + member_buffers * (chunk / 4);
  static constexpr int barriers_at = sources_at + 2 * 2 * chunk * 8;
  static constexpr int turn_at = barriers_at + (2 * slots + 2) * 8;
  static constexpr int share_at = turn_at + 16;
  static constexpr int prefix_at = share_at + 16;
  static constexpr int bytes = prefix_at + (static_cast<int>(max_shared_works) + 1) * 4;
  static_assert(bytes <= 227 * 1024);
  static_assert(member_buffers > (slots + stages) / 2 + 2);
};

/// The barriers of a thread block: full and empty of each slot, then of the queries.
template <class Traits>
struct Barriers {
  std::uint32_t base;
  __device__ Barrier full(std::uint32_t slot) const { return {base + slot * 8}; }
  __device__ Barrier empty(std::uint32_t slot) const { return {base + (Traits::slots + slot) * 8}; }
  __device__ Barrier queries_full() const { return {base + 2 * Traits::slots * 8}; }
  __device__ Barrier queries_empty() const { return {base + (2 * Traits::slots + 1) * 8}; }

  /// By one thread. Every thread of the producer arrives when its copies have landed, one more when the members are
  /// written; and one thread of each warp of the consumers.
  __device__ void init() const {
    for (int s = 0; s < Traits::slots; ++s) {
      full(s).init(128 + 1);
      empty(s).init(4 * warpgroups);
    }
    queries_full().init(128);
    queries_empty().init(4 * warpgroups);
    fence_barrier_init();
  }
};

}  // namespace kvsieve::cuda::sm90
