// SPDX-License-Identifier: Apache-2.0
//
// Interface of the Hopper decode kernel (kernel.cuh), instantiated once per head dim in its own translation unit.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "attend/cuda/head_group.hpp"
#include "attend/cuda/parameters.hpp"

namespace kvsieve::cuda::decode {

inline constexpr int warps = 4;       ///< of a thread block
inline constexpr int unit_keys = 16;  ///< keys of a step
inline constexpr int max_slots = 64;  ///< of all rings of a thread block
inline constexpr int max_rows = 128;  ///< (token, head) rows of a tile; D 256: half as many
inline constexpr int max_route_entries = 2240;
inline constexpr int shared_bytes = 113 * 1024;  ///< two thread blocks a processor
/// Words that a route may be built with: they lie over the rings.
inline constexpr int route_words = 64 * 1024 / 4;

/// How a call is cut up. A tile is some query rows of one KV head. Its (token, head) rows are dealt to `row_warps`
/// warps, 16 each, or 32 where there are more than 64; `key_warps` such groups of warps, in each of `splits` thread
/// blocks, share the tile's keys.
struct Schedule {
  HeadGroup group;
  int warp_rows = 16;
  int row_warps = 1;
  int key_warps = 4;    ///< 4, 2, 1, 1 beside 1, 2, 3, 4 row warps
  int splits = 1;       ///< thread blocks (a cluster) that share a tile's keys: 1, 2, 4, 8 or 16
  int share_shift = 2;  ///< log2 of splits * key_warps
  int split_shift = 0;  ///< log2 of splits
  int slots = 0;        ///< of each ring
  int last_at = 0;      ///< shared memory: last key of each entry, see traits.cuh
  int rings_at = 0;
};

/// A schedule for tiles of `rows` (token, head) rows, at most max_rows, whose routes have at most `capacity` entries,
/// at most max_route_entries. `row_bytes`: of a key.
Schedule make_schedule(HeadGroup group, std::int64_t rows, std::int64_t capacity, std::int64_t row_bytes, int splits);

struct Parameters {
  AttendParameters attend;
  Schedule schedule;
};

void launch_d64(const Parameters& parameters, cudaStream_t stream);
void launch_d128(const Parameters& parameters, cudaStream_t stream);
void launch_d256(const Parameters& parameters, cudaStream_t stream);

/// Clusters of 1, 2, 4, 8, 16 thread blocks that a device runs at the same time; 0 for what it does not say. Asks the
/// device once; it is current.
using ActiveClusters = std::array<int, 5>;
ActiveClusters active_clusters(int device);
ActiveClusters ask_active_clusters(int device);

}  // namespace kvsieve::cuda::decode
