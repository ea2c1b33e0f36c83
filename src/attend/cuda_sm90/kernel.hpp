// SPDX-License-Identifier: Apache-2.0
//
// Interface of the Hopper attend kernel (kernel.cuh), instantiated once per head dim in its own translation unit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attend/cuda/parameters.hpp"

namespace kvsieve::cuda::sm90 {

/// How a call is cut up. A tile is some query rows of one KV head; its (token, head) rows are dealt to warpgroups, 64
/// each.
struct Schedule {
  bool wide = true;             ///< the kernel with several consumer warpgroups (prefill), or the one with a single one
  int warpgroup_tokens = 1;     ///< query rows of a warpgroup; warpgroups times this covers a tile
  int splits = 1;               ///< thread blocks (a cluster) that share a tile's keys: 1, 2, 4, 8 or 16
  int split_shift = 0;          ///< log2 of it
  bool in_block_route = false;  ///< each thread block builds the route of its tile itself
};

/// What the kernel of a head dim offers.
struct KernelShape {
  int warpgroups = 1;  ///< that compute
  int blocks_per_processor = 1;
  std::int64_t route_entries = 0;  ///< of an in-block route at most
  std::int64_t route_slots = 0;    ///< of its hash table
  std::int64_t route_words = 0;    ///< of its dense table
};
KernelShape kernel_shape(std::int64_t head_dim, bool wide);

struct Parameters {
  AttendParameters attend;
  Schedule schedule;
};

void launch_d64(const Parameters& parameters, int num_processors, cudaStream_t stream);
void launch_d128(const Parameters& parameters, int num_processors, cudaStream_t stream);
void launch_d256(const Parameters& parameters, int num_processors, cudaStream_t stream);

KernelShape shape_d64(bool wide);
KernelShape shape_d128(bool wide);
KernelShape shape_d256(bool wide);

}  // namespace kvsieve::cuda::sm90
