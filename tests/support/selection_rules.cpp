// SPDX-License-Identifier: Apache-2.0
#include "support/selection_rules.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "core/numeric.hpp"

namespace kvsieve::test {
namespace {

/// What a row may see, and the blocks that it selects, in terms of positions.
struct RowSelection {
  std::int64_t request = -1;
  std::int64_t last = -1;  ///< last visible position
  std::set<std::int64_t> blocks;
};

RowSelection qsa_selection(const AttentionProblem& p, std::int64_t row, const std::int32_t* ids) {
  RowSelection selection;
  if (p.group_bounds != nullptr && (row < p.group_bounds[0] || row >= p.group_bounds[p.num_groups])) return selection;
  const std::int64_t request = p.token_to_request[row];
  const std::int64_t position = p.positions64 != nullptr ? p.positions64[row] : p.positions32[row];
  if (request < 0 || request >= p.num_requests || position < 0 || position >= p.max_kv_length) return selection;
  selection.request = request;
  selection.last = position;
  const std::int64_t done = (position + 1) / p.block_size;
  for (std::int64_t i = 0; i < std::min(p.topk, done); ++i) {
    if (ids[i] >= 0 && ids[i] < done) selection.blocks.insert(ids[i]);
  }
  selection.blocks.insert(done);  // the tail
  return selection;
}

RowSelection msa_selection(const AttentionProblem& p, std::int64_t row, const std::int32_t* ids) {
  RowSelection selection;
  std::int64_t first_row = 0;
  std::int64_t num_rows = p.rows_per_request;
  if (p.row_rule == RowRule::rows_per_request) {
    selection.request = row / num_rows;
    first_row = selection.request * num_rows;
  } else {
    for (std::int64_t b = p.num_requests - 1; b >= 0; --b) {
      if (p.row_starts[b] > row || row >= p.row_starts[b + 1]) continue;
      selection.request = b;
      first_row = p.row_starts[b];
      num_rows = p.row_starts[b + 1] - first_row;
    }
    if (selection.request < 0) return selection;
  }
  std::int64_t length = 0;
  if (p.paged) {
    length = std::clamp<std::int64_t>(p.kv_lengths[selection.request], 0, p.max_pages * p.page_size);
  } else {
    const std::int64_t begin = p.kv_starts[selection.request], end = p.kv_starts[selection.request + 1];
    if (begin >= 0 && begin <= end && end <= p.page_size) length = end - begin;
  }
  const std::int64_t offset = p.q_offset != nullptr ? p.q_offset[selection.request] : length - num_rows;
  const std::int64_t position = offset + row - first_row;
  selection.last = p.causal ? std::min(position, length - 1) : length - 1;
  const std::int64_t visible = selection.last < 0 ? 0 : selection.last / p.block_size + 1;
  const std::int64_t counted = p.valid_prefix ? std::min(p.topk, visible) : p.topk;
  for (std::int64_t i = 0; i < counted; ++i) {
    if (ids[i] >= 0) selection.blocks.insert(ids[i]);
  }
  return selection;
}

const std::int32_t* ints(const Tensor& t) { return t.defined() ? static_cast<const std::int32_t*>(t.data) : nullptr; }

/// Calls `visit(head, page, slot, offset)` for each row [D] of a cache.
template <class Visit>
void for_each_token(const Tensor& cache, Visit&& visit) {
  const bool paged = cache.rank == 4;
  const std::int64_t pages = paged ? cache.shape[0] : 1, tokens = paged ? cache.shape[2] : cache.shape[0];
  const std::int64_t page_stride = paged ? cache.stride[0] : 0,
                     token_stride = paged ? cache.stride[2] : cache.stride[0];
  for (std::int64_t head = 0; head < cache.shape[1]; ++head) {
    for (std::int64_t page = 0; page < pages; ++page) {
      for (std::int64_t slot = 0; slot < tokens; ++slot) {
        visit(head, page, slot, page * page_stride + head * cache.stride[1] + slot * token_stride);
      }
    }
  }
}

}  // namespace

std::vector<AttendedToken> attended_tokens(const AttentionProblem& p, std::int64_t row, std::int64_t kv_head) {
  const std::int32_t* const ids = p.ids + row * p.ids_stride_row + kv_head * p.ids_stride_head;
  const bool qsa = p.row_rule == RowRule::per_row;
  const RowSelection selection = qsa ? qsa_selection(p, row, ids) : msa_selection(p, row, ids);
  std::vector<AttendedToken> tokens;
  if (selection.request < 0) return tokens;
  const std::int64_t capacity = p.paged ? p.max_pages * p.page_size : std::numeric_limits<std::int64_t>::max();
  const std::int64_t end = std::min(selection.last + 1, capacity);
  for (const std::int64_t block : selection.blocks) {
    for (std::int64_t j = block * p.block_size; j < std::min((block + 1) * p.block_size, end); ++j) {
      if (!p.paged) {
        tokens.push_back({j, 0, p.kv_starts[selection.request] + j});
        continue;
      }
      const std::int32_t page = p.page_table[selection.request * p.page_table_stride + j / p.page_size];
      if (page >= 0 && page < p.num_pages) tokens.push_back({j, page, j % p.page_size});
    }
  }
  return tokens;
}

AttentionProblem selection_of(const io::Case& c) {
  AttentionProblem p;
  const Tensor& k = c.k();
  p.paged = k.rank == 4;
  p.num_pages = p.paged ? k.shape[0] : 1;
  p.page_size = p.paged ? k.shape[2] : k.shape[0];
  p.num_kv_heads = k.shape[1];
  const Tensor& table = c.is_msa() ? c.msa.page_table : c.qsa.block_table;
  if (p.paged) {
    p.page_table = ints(table);
    p.page_table_stride = table.stride[0];
    p.max_pages = table.shape[1];
    p.num_requests = table.shape[0];
  }
  if (c.is_msa()) {
    const MsaArguments& a = c.msa;
    p.total_q = a.q.shape[0];
    p.block_size = a.block_size;
    p.topk = a.q2k_indices.shape[2];
    p.ids = ints(a.q2k_indices);
    p.ids_stride_head = a.q2k_indices.stride[0];
    p.ids_stride_row = a.q2k_indices.stride[1];
    p.row_rule = c.decode() ? RowRule::rows_per_request : RowRule::cu_seqlens;
    p.rows_per_request = a.seqlen_q;
    p.row_starts = ints(a.cu_seqlens_q);
    p.kv_lengths = ints(a.seqused_k);
    p.kv_starts = ints(a.cu_seqlens_k);
    if (!p.paged) p.num_requests = a.cu_seqlens_k.shape[0] - 1;
    p.q_offset = ints(a.q_offset);
    p.causal = a.causal;
    p.valid_prefix = a.valid_prefix;
  } else {
    const QsaArguments& a = c.qsa;
    p.total_q = a.token_to_request.shape[0];
    p.block_size = c.qsa_config.kv_block_size;
    p.topk = c.qsa_config.block_topk;
    p.ids = ints(a.indexer_block_ids);
    p.ids_stride_row = a.indexer_block_ids.stride[0];
    p.ids_stride_head = c.qsa_config.share_pattern_across_kv_heads ? 0 : a.indexer_block_ids.stride[1];
    p.row_rule = RowRule::per_row;
    p.token_to_request = ints(a.token_to_request);
    if (a.query_positions.dtype == DType::i64) {
      p.positions64 = static_cast<const std::int64_t*>(a.query_positions.data);
    } else {
      p.positions32 = ints(a.query_positions);
    }
    p.max_kv_length = c.qsa_config.max_seq_len_kv;
    if (c.qsa_config.use_packed_q) {
      p.group_bounds = ints(a.qo_indptr);
      p.num_groups = a.qo_indptr.shape[0] - 1;
    }
  }
  return p;
}

void poison_unattended(io::Case& test_case) {
  const AttentionProblem p = selection_of(test_case);
  const std::int64_t head_tokens = p.num_pages * p.page_size;
  std::vector<bool> attended(static_cast<std::size_t>(p.num_kv_heads * head_tokens));
  const auto index = [&](std::int64_t head, std::int64_t page, std::int64_t slot) {
    return static_cast<std::size_t>(head * head_tokens + page * p.page_size + slot);
  };
  for (std::int64_t head = 0; head < p.num_kv_heads; ++head) {
    for (std::int64_t row = 0; row < p.total_q; ++row) {
      for (const AttendedToken& token : attended_tokens(p, row, head)) {
        attended[index(head, token.page, token.slot)] = true;
      }
    }
  }
  for (const Tensor* const cache : {&test_case.k(), &test_case.v()}) {
    for_each_token(*cache, [&](std::int64_t head, std::int64_t page, std::int64_t slot, std::int64_t offset) {
      if (attended[index(head, page, slot)]) return;
      for (std::int64_t d = 0; d < cache->shape[cache->rank - 1]; ++d) {
        store_from_float(cache->data, cache->dtype, offset + d, std::numeric_limits<float>::quiet_NaN());
      }
    });
  }
}

}  // namespace kvsieve::test
