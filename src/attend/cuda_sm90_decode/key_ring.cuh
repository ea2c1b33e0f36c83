// SPDX-License-Identifier: Apache-2.0
//
// The ring of tiles through which keys and values reach the warps: K and V tiles of 16 keys alternate. The warps that
// read a ring fill it themselves, each some of a tile's rows.
#pragma once

#include "attend/cuda_sm90_decode/traits.cuh"

namespace kvsieve::cuda::decode {

/// A place in a ring, and the parity of its barriers' phases.
struct RingPosition {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

template <class Traits>
struct KeyRing {
  const Parameters& p;
  unsigned char* shared;
  Barriers barriers;
  int first_slot;  ///< of the ring
  int row_warp;    ///< the warp among those that read the ring
  Units units;
  int tiles;             ///< all: K and V of each unit
  int next_tile = 0;     ///< to be copied
  RingPosition filling;  ///< where it goes
  RingPosition reading;

  __device__ KeyRing(const Parameters& parameters, unsigned char* shared_memory, int key_warp, int warp_of_ring,
                     Units all_units)
      : p(parameters),
        shared(shared_memory),
        barriers{shared_address(shared_memory + SharedMap::barriers_at)},
        first_slot(key_warp * parameters.schedule.slots),
        row_warp(warp_of_ring),
        units(all_units),
        tiles(2 * (all_units.end - all_units.begin)) {}

  __device__ unsigned char* slot_memory(int slot) const {
    return shared + p.schedule.rings_at + (first_slot + slot) * Traits::tile_bytes;
  }

  /// Starts copying the next tile, into the slot that the warps released last.
  __device__ void fill_next() {
    if (next_tile >= tiles) return;
    barriers.empty(first_slot + filling.slot).wait(filling.phase ^ 1);
    copy_tile();
    barriers.full(first_slot + filling.slot).arrive_after_copies();
    ++next_tile;
    filling.advance(p.schedule.slots);
  }

  /// This warp's rows of the next tile. Keys that no row may see are not read; zeros take their place.
  __device__ void copy_tile() const {
    const AttentionProblem& problem = p.attend.problem;
    const auto* const data = static_cast<const unsigned char*>((next_tile & 1) == 0 ? problem.k.data : problem.v.data);
    const auto* const blocks = reinterpret_cast<const KeyBlock*>(shared + SharedMap::entries_at);
    const auto* const last = reinterpret_cast<const std::int32_t*>(shared + p.schedule.last_at);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int piece = lane % Traits::pieces;
    const std::int64_t stride = problem.k.stride_token;
    const int in_block = static_cast<int>(problem.block_size) - 1;
    const int first_key = (units.begin + next_tile / 2) * unit_keys;
    const std::uint32_t to = shared_address(slot_memory(filling.slot));
#pragma unroll 4
    for (int pass = row_warp; pass < Traits::passes; pass += p.schedule.row_warps) {
      const int row = pass * Traits::pass_rows + lane / Traits::pieces;
      const int key = first_key + row;
      const int block = key >> p.attend.block_shift;
      const int key_in_block = key & in_block;
      const bool seen = key_in_block <= last[block];
      const std::int64_t element = blocks[block].offset + key_in_block * stride;
      const auto* const from = data + element * Traits::element_bytes + piece * 16;
      copy_async_16(to + Traits::place(row, piece), seen ? from : data, seen);
    }
  }

  /// Waits for the tile to read next, and returns where it lies.
  __device__ const unsigned char* wait() const {
    barriers.full(first_slot + reading.slot).wait(reading.phase);
    return slot_memory(reading.slot);
  }

  /// The warp is done with the tile.
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barriers.empty(first_slot + reading.slot).arrive();
    reading.advance(p.schedule.slots);
  }
};

}  // namespace kvsieve::cuda::decode
