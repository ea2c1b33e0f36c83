// SPDX-License-Identifier: Apache-2.0
//
// Interface of the Hopper attend kernel (kernel.cuh), instantiated once per head dim in its own translation unit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attend/cuda/head_group.hpp"
#include "attend/cuda/parameters.hpp"

namespace kvsieve::cuda::sm90 {

inline constexpr int warpgroups = 2;  ///< that compute; one more brings the keys
inline constexpr int warpgroup_rows = 64;
inline constexpr int tile_rows = warpgroups * warpgroup_rows;
/// Works that thread blocks may share at most: fewer than two for each.
inline constexpr std::int64_t max_shared_works = 512;

/// How a call is cut up. A tile is some query rows of one KV head, a work of the kernel; its (token, head) rows are
/// dealt to the warpgroups, 64 each. The first `whole_works` works are dealt to the thread blocks whole, in turns; the
/// chunks of the others, end to end, are cut into one equal share for each thread block.
struct Schedule {
  HeadGroup group;
  int warpgroup_tokens = 1;       ///< query rows of a warpgroup; twice this covers a tile
  std::uint32_t whole_works = 0;  ///< all of them: nothing is shared
};

/// States of works that thread blocks share, two for each thread block b: 2b is of a work that an earlier thread block
/// began, 2b + 1 of one that it begins and does not end.
struct SharedStates {
  float* out = nullptr;           ///< [state][tile row][D], not normalised
  float2* stats = nullptr;        ///< [state][tile row]: reference (base 2, scaled) and sum
  std::int32_t* works = nullptr;  ///< [state]: whose it is, or no_state, or empty_share (in 2b)
};
inline constexpr std::int32_t no_state = -1;
inline constexpr std::int32_t empty_share = -2;

struct Parameters {
  AttendParameters attend;
  Schedule schedule;
  SharedStates states;  ///< where something is shared
};

void launch_d64(const Parameters& parameters, int num_processors, cudaStream_t stream);
void launch_d128(const Parameters& parameters, int num_processors, cudaStream_t stream);
void launch_d256(const Parameters& parameters, int num_processors, cudaStream_t stream);

/// Merges the states of shared works and writes their rows; after the attend kernel of `num_blocks` thread blocks.
void combine_shares(const Parameters& parameters, int num_blocks, cudaStream_t stream);

}  // namespace kvsieve::cuda::sm90
