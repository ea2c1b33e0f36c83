// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace kvsieve {

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
  bool shared_selection = false;  ///< one list of ids for all KV heads
  int num_threads = 0;            ///< CPU only; 0: all cores
};

/// The sizes of a call. Its KV heads may turn out to share their ids (a stride of 0) where its configuration could not
/// know; the call then needs no more memory than was planned.
inline Shape shape_of(const AttentionProblem& problem, int num_threads) {
  Shape shape;
  shape.total_q = problem.total_q;
  shape.num_qo_heads = problem.num_qo_heads;
  shape.num_kv_heads = problem.num_kv_heads;
  shape.head_dim = problem.head_dim;
  shape.topk = problem.topk;
  shape.block_size = problem.block_size;
  shape.shared_selection = problem.ids_stride_head == 0;
  shape.num_threads = num_threads;
  return shape;
}

}  // namespace kvsieve
