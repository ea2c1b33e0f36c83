// SPDX-License-Identifier: Apache-2.0
//
// Which request and position a query row has, and with it which keys it may see. Index tensors may hold anything: what
// is out of range makes the row, or the request, empty. The CPU backend and the CUDA kernels share these functions.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/problem.hpp"

namespace kvsieve {

/// What one query row may attend to, before its selected ids are looked at.
struct RowTarget {
  std::int32_t request = -1;     ///< -1: the row has no key
  std::int64_t limit = -1;       ///< last position it may attend to; -1 for none
  std::int64_t num_blocks = 0;   ///< ids in [0, num_blocks) name a block that exists
  std::int64_t num_ids = 0;      ///< leading entries of the row's id list that count
  std::int64_t tail_block = -1;  ///< block that is attended though no id names it; -1 for none
  KVSIEVE_HOST_DEVICE bool empty() const noexcept { return limit < 0; }
};

/// Where the first token of a block is.
struct BlockLocation {
  std::int32_t page = -1;  ///< -1: the page table has no valid page for it
  std::int32_t slot = 0;   ///< token within the page
};

/// The request that owns a row, by the MSA rules.
struct RequestRow {
  std::int64_t request = -1;
  std::int64_t index = 0;     ///< t: the row's index within the request
  std::int64_t num_rows = 0;  ///< len_q of the request
};

/// x / block_size, rounded down, for a block size that is a power of two.
KVSIEVE_HOST_DEVICE inline std::int64_t block_of(std::int64_t x, std::int64_t block_size) {
#ifdef __CUDA_ARCH__
  return x >> (__ffsll(block_size) - 1);
#else
  return x >> __builtin_ctzll(static_cast<unsigned long long>(block_size));
#endif
}

KVSIEVE_HOST_DEVICE inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
KVSIEVE_HOST_DEVICE inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// KV length of a request after clamping to what its tables can hold (MSA only). Sets *in_range, when given, to whether
/// the stored length or range needed no clamping.
KVSIEVE_HOST_DEVICE inline std::int64_t kv_length(const AttentionProblem& problem, std::int64_t request,
                                                  bool* in_range = nullptr) {
  std::int64_t length = 0;
  bool valid = true;
  if (problem.kv_starts == nullptr) {
    const std::int64_t stored = problem.kv_lengths[request];
    length = smaller(larger(stored, 0), problem.max_pages * problem.page_size);
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

KVSIEVE_HOST_DEVICE inline RequestRow request_of_row(const AttentionProblem& problem, std::int64_t row) {
  if (problem.row_rule == RowRule::rows_per_request) {
    const auto rows = static_cast<std::uint32_t>(problem.rows_per_request);  // 64-bit division is slow on a GPU
    const std::uint32_t request = static_cast<std::uint32_t>(row) / rows;
    return {request, row - std::int64_t{request} * rows, rows};
  }
  // The first request that claims the row. Linear, because nothing says that hostile boundaries are sorted.
  for (std::int64_t b = 0; b < problem.num_requests; ++b) {
    const std::int64_t begin = problem.row_starts[b];
    const std::int64_t end = problem.row_starts[b + 1];
    if (begin <= row && row < end) return {b, row - begin, end - begin};
  }
  return {};
}

KVSIEVE_HOST_DEVICE inline RowTarget msa_row_target(const AttentionProblem& problem, std::int64_t row) {
  const RequestRow owner = request_of_row(problem, row);
  if (owner.request < 0) return {};
  const std::int64_t length = kv_length(problem, owner.request);
  const std::int64_t offset = problem.q_offset != nullptr ? problem.q_offset[owner.request] : length - owner.num_rows;
  RowTarget target;
  target.request = static_cast<std::int32_t>(owner.request);
  target.limit = length - 1;
  if (problem.causal) target.limit = larger(-1, smaller(offset + owner.index, length - 1));
  target.num_blocks = block_of(length + problem.block_size - 1, problem.block_size);
  const std::int64_t visible_blocks = block_of(target.limit + problem.block_size, problem.block_size);
  target.num_ids = problem.valid_prefix ? smaller(problem.topk, visible_blocks) : problem.topk;
  return target;
}

/// True for a row that the groups of a packed QSA call cover; the others are padding.
KVSIEVE_HOST_DEVICE inline bool is_live_row(const AttentionProblem& problem, std::int64_t row) {
  return problem.group_bounds == nullptr ||
         (row >= problem.group_bounds[0] && row < problem.group_bounds[problem.num_groups]);
}

KVSIEVE_HOST_DEVICE inline std::int64_t query_position(const AttentionProblem& problem, std::int64_t row) {
  return problem.positions64 != nullptr ? problem.positions64[row] : problem.positions32[row];
}

KVSIEVE_HOST_DEVICE inline RowTarget qsa_row_target(const AttentionProblem& problem, std::int64_t row) {
  if (!is_live_row(problem, row)) return {};
  const std::int32_t request = problem.token_to_request[row];
  const std::int64_t position = query_position(problem, row);
  if (request < 0 || request >= problem.num_requests) return {};
  if (position < 0 || position >= problem.max_kv_length) return {};
  RowTarget target;
  target.request = request;
  target.limit = position;
  target.num_blocks = block_of(position + 1, problem.block_size);
  target.num_ids = smaller(problem.topk, target.num_blocks);
  if (target.num_blocks * problem.block_size <= position) target.tail_block = target.num_blocks;
  return target;
}

KVSIEVE_HOST_DEVICE inline RowTarget row_target(const AttentionProblem& problem, std::int64_t row) {
  return problem.row_rule == RowRule::per_row ? qsa_row_target(problem, row) : msa_row_target(problem, row);
}

/// True when an id that counts names a block of which the row may see some key.
KVSIEVE_HOST_DEVICE inline bool is_visible_block(const AttentionProblem& problem, const RowTarget& target,
                                                 std::int64_t block) {
  return block >= 0 && block < target.num_blocks && block * problem.block_size <= target.limit;
}

KVSIEVE_HOST_DEVICE inline BlockLocation locate_block(const AttentionProblem& problem, std::int32_t request,
                                                      std::int64_t block) {
  const std::int64_t position = block * problem.block_size;
  if (problem.kv_starts != nullptr) {
    return {0, static_cast<std::int32_t>(problem.kv_starts[request] + position)};
  }
  const std::int64_t logical_page = position / problem.page_size;
  if (logical_page >= problem.max_pages) return {};
  const std::int32_t page = problem.page_table[request * problem.page_table_stride + logical_page];
  if (page < 0 || page >= problem.num_pages) return {};
  return {page, static_cast<std::int32_t>(position % problem.page_size)};
}

/// Number of out-of-range index entries of a row, as CallOptions::check_indices defines it.
KVSIEVE_HOST_DEVICE inline std::int64_t bad_indices_of_row(const AttentionProblem& problem, std::int64_t row) {
  std::int64_t bad = 0;
  const bool msa = problem.row_rule != RowRule::per_row;
  if (!msa) {
    const std::int64_t position = query_position(problem, row);
    if (!is_live_row(problem, row) || position < 0) return 0;  // padding
    const std::int32_t request = problem.token_to_request[row];
    if (request < 0 || request >= problem.num_requests) ++bad;
    if (position >= problem.max_kv_length) ++bad;
  }
  const RowTarget target = row_target(problem, row);
  if (target.empty()) return bad;
  const std::int64_t lists = problem.shared_selection ? 1 : problem.num_kv_heads;
  for (std::int64_t list = 0; list < lists; ++list) {
    const std::int32_t* ids = problem.ids + row * problem.ids_stride_row + list * problem.ids_stride_head;
    for (std::int64_t i = 0; i < target.num_ids; ++i) {
      if (msa && ids[i] == -1) continue;
      const bool exists = ids[i] >= 0 && ids[i] < target.num_blocks;
      const bool visible = is_visible_block(problem, target, ids[i]);
      if (!exists || (visible && locate_block(problem, target.request, ids[i]).page < 0)) ++bad;
    }
    if (target.tail_block >= 0 && locate_block(problem, target.request, target.tail_block).page < 0) ++bad;
  }
  return bad;
}

/// 1 when the KV range of an MSA request had to be clamped, else 0.
KVSIEVE_HOST_DEVICE inline std::int64_t bad_indices_of_request(const AttentionProblem& problem, std::int64_t request) {
  if (problem.row_rule == RowRule::per_row) return 0;
  bool in_range = true;
  kv_length(problem, request, &in_range);
  return in_range ? 0 : 1;
}

}  // namespace kvsieve
