// SPDX-License-Identifier: Apache-2.0
//
// attend, on the CPU: online softmax of one tile of query rows over its route. The interface of the SIMD code in
// kernel.cpp; docs/kernels/cpu.md describes layout and method.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "route/route_builder.hpp"

namespace kvsieve::cpu {

/// Scalars of a call, read from their host or tensor form.
struct Scalars {
  float logit_scale = 1.0f;  ///< softmax scale times K's dequantisation scale
  float v_scale = 1.0f;
  float temperature = 1.0f;  ///< of lse_t
};

/// States of a query row whose keys were split: for (row, head, split), index (row * Hq + head) * num_splits + split.
struct Partials {
  float* out = nullptr;    ///< [..., D], normalised; null when the call is not split
  float* lse = nullptr;    ///< [...]
  float* lse_t = nullptr;  ///< [...], null when not asked for
  std::int64_t num_splits = 1;
};

/// One tile for one KV head over entries [entry_begin, entry_end) of its route.
struct TileTask {
  const AttentionProblem* problem = nullptr;
  const Route* route = nullptr;
  Scalars scalars;
  std::int64_t kv_head = 0;
  std::int64_t entry_begin = 0;
  std::int64_t entry_end = 0;
  std::int64_t split = 0;
  Partials partials;
  void* scratch = nullptr;  ///< scratch_bytes(), aligned to 64
};

/// (row, head) pairs that a tile may have.
inline constexpr std::int64_t max_tile_lanes = 128;

/// Scratch that attend_tile needs for tiles of `lanes` (row, head) pairs.
std::size_t scratch_bytes(std::int64_t lanes, std::int64_t head_dim);

/// Attends, and writes either the rows' outputs or, when partials.out is set, their states of this split.
void attend_tile(const TileTask& task);

/// Scales, gates, rounds and stores one output row of D floats. `values` is overwritten.
void store_row(const AttentionProblem& problem, float v_scale, std::int64_t row, std::int64_t head, float* values);

/// Name of the SIMD target that this process dispatches to.
const char* simd_target();
/// True when BF16 inputs use BF16 dot-product instructions here: where the CPU has them, except on Intel's, whose
/// float32 units are faster. KVSIEVE_BF16_DOT=0 and =1 decide otherwise.
bool has_bf16_dot();

}  // namespace kvsieve::cpu
