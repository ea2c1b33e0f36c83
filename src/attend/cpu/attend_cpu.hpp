// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: cuts a problem into tiles (and splits), routes and attends each on some thread, combines the splits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace kvsieve::cpu {

/// Query heads per KV head, and head dim, at most.
inline constexpr std::int64_t max_group = 16;
inline constexpr std::int64_t max_head_dim = 256;

/// Sizes that decide how a call is cut up and what memory it needs.
struct Shape {
  std::int64_t total_q = 0;
  std::int64_t num_qo_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t topk = 0;
  std::int64_t block_size = 0;
  int num_threads = 0;  ///< 0: all cores
};

/// Workspace for every call whose sizes are at most these.
std::size_t workspace_bytes(const Shape& shape);

/// Computes the problem. The workspace holds at least workspace_bytes() of the problem's shape.
void attend(const AttentionProblem& problem, int num_threads, void* workspace);

}  // namespace kvsieve::cpu
