// SPDX-License-Identifier: Apache-2.0
//
// The map of the decode kernel's shared memory, which depends on how many entries a route may have.
#pragma once

#include "attend/cuda_sm90_decode/kernel.hpp"

namespace kvsieve::cuda::decode {

/// Bytes:
///
///     barriers   full [ring][slot], empty [ring][slot]
///     stats      [key warp][row] of the states of this thread block, then [row] of the merged ones
///     route      NarrowRoute, at most route_bytes
///     entries    [capacity, and a step more]
///     last       [capacity, and a step more]
///     rings      [key warp][slot][16 keys][row]; before, the table that finds the union; after, the states
///                [key warp][row][D] of float32
struct SharedMap {
  static constexpr int barriers_at = 0;
  static constexpr int stats_at = barriers_at + 2 * max_slots * 8;
  static constexpr int merged_at = stats_at + max_rows * 8;
  static constexpr int route_at = merged_at + max_rows * 8;
  static constexpr int route_bytes = 2048;
  static constexpr int entries_at = route_at + route_bytes;
  static constexpr int states_bytes = max_rows * 128 * 4;

  int last_at, rings_at;

  constexpr explicit SharedMap(int capacity) : last_at(0), rings_at(0) {
    const int entries = capacity + unit_keys / 4;  // blocks have four keys at least
    last_at = entries_at + entries * 16;
    rings_at = (last_at + entries * 4 + 127) / 128 * 128;
  }
};
static_assert(SharedMap(max_route_entries).rings_at + SharedMap::states_bytes <= shared_bytes);
static_assert(route_words * 4 <= SharedMap::states_bytes);

}  // namespace kvsieve::cuda::decode
