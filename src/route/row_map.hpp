// SPDX-License-Identifier: Apache-2.0
//
// Which request and position a query row has, and with it which keys it may see. Index tensors may hold anything: what
// is out of range makes the row, or the request, empty.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace kvsieve {

/// What one query row may attend to, before its selected ids are looked at.
struct RowTarget {
  std::int32_t request = -1;     ///< -1: the row has no key
  std::int64_t limit = -1;       ///< last position it may attend to; -1 for none
  std::int64_t num_blocks = 0;   ///< ids in [0, num_blocks) name a block that exists
  std::int64_t num_ids = 0;      ///< leading entries of the row's id list that count
  std::int64_t tail_block = -1;  ///< block that is attended though no id names it; -1 for none
  bool empty() const noexcept { return limit < 0; }
};

RowTarget row_target(const AttentionProblem& problem, std::int64_t row);

/// KV length of a request after clamping to what its tables can hold (MSA only). Sets *in_range, when given, to whether
/// the stored length or range needed no clamping.
std::int64_t kv_length(const AttentionProblem& problem, std::int64_t request, bool* in_range = nullptr);

/// Where the first token of a block is.
struct BlockLocation {
  std::int32_t page = -1;  ///< -1: the page table has no valid page for it
  std::int32_t slot = 0;   ///< token within the page
};
BlockLocation locate_block(const AttentionProblem& problem, std::int32_t request, std::int64_t block);

/// Number of out-of-range index entries of a call, as CallOptions::check_indices defines it. Debug only: one thread.
std::int64_t count_bad_indices(const AttentionProblem& problem);

}  // namespace kvsieve
