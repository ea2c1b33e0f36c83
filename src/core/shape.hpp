// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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

}  // namespace kvsieve
