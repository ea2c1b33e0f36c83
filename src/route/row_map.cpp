// SPDX-License-Identifier: Apache-2.0
#include "route/row_map.hpp"

#include <algorithm>

namespace kvsieve {
namespace {

struct RequestRow {
  std::int64_t request = -1;
  std::int64_t index = 0;     ///< t: the row's index within the request
  std::int64_t num_rows = 0;  ///< len_q of the request
};

RequestRow request_of_row(const AttentionProblem& problem, std::int64_t row) {
  if (problem.row_rule == RowRule::rows_per_request) {
    return {row / problem.rows_per_request, row % problem.rows_per_request, problem.rows_per_request};
  }
  // The first request that claims the row. Linear, because nothing says that hostile boundaries are sorted.
  for (std::int64_t b = 0; b < problem.num_requests; ++b) {
    const std::int64_t begin = problem.row_starts[b];
    const std::int64_t end = problem.row_starts[b + 1];
    if (begin <= row && row < end) return {b, row - begin, end - begin};
  }
  return {};
}

RowTarget msa_row_target(const AttentionProblem& problem, std::int64_t row) {
  const RequestRow owner = request_of_row(problem, row);
  if (owner.request < 0) return {};
  const std::int64_t length = kv_length(problem, owner.request);
  const std::int64_t offset = problem.q_offset != nullptr ? problem.q_offset[owner.request] : length - owner.num_rows;
  RowTarget target;
  target.request = static_cast<std::int32_t>(owner.request);
  target.limit = length - 1;
  if (problem.causal) target.limit = std::max<std::int64_t>(-1, std::min(offset + owner.index, length - 1));
  target.num_blocks = (length + problem.block_size - 1) / problem.block_size;
  const std::int64_t visible_blocks = (target.limit + problem.block_size) / problem.block_size;
  target.num_ids = problem.valid_prefix ? std::min(problem.topk, visible_blocks) : problem.topk;
  return target;
}

RowTarget qsa_row_target(const AttentionProblem& problem, std::int64_t row) {
  if (problem.group_bounds != nullptr &&
      (row < problem.group_bounds[0] || row >= problem.group_bounds[problem.num_groups])) {
    return {};  // padding around the groups
  }
  const std::int32_t request = problem.token_to_request[row];
  const std::int64_t position = problem.positions64 != nullptr ? problem.positions64[row] : problem.positions32[row];
  if (request < 0 || request >= problem.num_requests) return {};
  if (position < 0 || position >= problem.max_kv_length) return {};
  RowTarget target;
  target.request = request;
  target.limit = position;
  target.num_blocks = (position + 1) / problem.block_size;
  target.num_ids = std::min(problem.topk, target.num_blocks);
  if (target.num_blocks * problem.block_size <= position) target.tail_block = target.num_blocks;
  return target;
}

}  // namespace

std::int64_t kv_length(const AttentionProblem& problem, std::int64_t request, bool* in_range) {
  std::int64_t length = 0;
  bool valid = true;
  if (problem.page_table != nullptr) {
    const std::int64_t stored = problem.kv_lengths[request];
    length = std::clamp<std::int64_t>(stored, 0, problem.max_pages * problem.page_size);
    valid = length == stored;
  } else {
    const std::int64_t begin = problem.kv_starts[request];
    const std::int64_t end = problem.kv_starts[request + 1];
    valid = begin >= 0 && begin <= end && end <= problem.page_size;
    length = valid ? end - begin : 0;
  }
  if (in_range != nullptr) *in_range = valid;
  return length;
}

RowTarget row_target(const AttentionProblem& problem, std::int64_t row) {
  return problem.row_rule == RowRule::per_row ? qsa_row_target(problem, row) : msa_row_target(problem, row);
}

BlockLocation locate_block(const AttentionProblem& problem, std::int32_t request, std::int64_t block) {
  const std::int64_t position = block * problem.block_size;
  if (problem.page_table == nullptr) {
    return {0, static_cast<std::int32_t>(problem.kv_starts[request] + position)};
  }
  const std::int64_t logical_page = position / problem.page_size;
  if (logical_page >= problem.max_pages) return {};
  const std::int32_t page = problem.page_table[request * problem.page_table_stride + logical_page];
  if (page < 0 || page >= problem.num_pages) return {};
  return {page, static_cast<std::int32_t>(position % problem.page_size)};
}

std::int64_t count_bad_indices(const AttentionProblem& problem) {
  std::int64_t bad = 0;
  const bool msa = problem.row_rule != RowRule::per_row;
  if (msa) {
    for (std::int64_t b = 0; b < problem.num_requests; ++b) {
      bool in_range = true;
      kv_length(problem, b, &in_range);
      if (!in_range) ++bad;
    }
  }
  const std::int64_t lists = problem.ids_stride_head == 0 ? 1 : problem.num_kv_heads;
  for (std::int64_t row = 0; row < problem.total_q; ++row) {
    if (!msa) {
      const bool live = problem.group_bounds == nullptr ||
                        (row >= problem.group_bounds[0] && row < problem.group_bounds[problem.num_groups]);
      const std::int64_t position =
          problem.positions64 != nullptr ? problem.positions64[row] : problem.positions32[row];
      if (!live || position < 0) continue;
      const std::int32_t request = problem.token_to_request[row];
      if (request < 0 || request >= problem.num_requests) ++bad;
      if (position >= problem.max_kv_length) ++bad;
    }
    const RowTarget target = row_target(problem, row);
    if (target.empty()) continue;
    for (std::int64_t list = 0; list < lists; ++list) {
      const std::int32_t* ids = problem.ids + row * problem.ids_stride_row + list * problem.ids_stride_head;
      for (std::int64_t i = 0; i < target.num_ids; ++i) {
        if (msa && ids[i] == -1) continue;
        const bool exists = ids[i] >= 0 && ids[i] < target.num_blocks;
        const bool visible = exists && ids[i] * problem.block_size <= target.limit;
        if (!exists || (visible && locate_block(problem, target.request, ids[i]).page < 0)) ++bad;
      }
      if (target.tail_block >= 0 && locate_block(problem, target.request, target.tail_block).page < 0) ++bad;
    }
  }
  return bad;
}

}  // namespace kvsieve
