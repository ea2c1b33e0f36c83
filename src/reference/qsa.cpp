// SPDX-License-Identifier: Apache-2.0
//
// QSA attention in float64 (kvsieve/qsa.hpp has the formulas).
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "reference/reference.hpp"
#include "reference/softmax.hpp"

namespace kvsieve::reference {
namespace {

/// Element offset of (row, head) in q, out or output_gate (heads is rank - 2) or lse (heads is rank - 1): packed
/// [total_q, Hq, ...] or fixed [B, Nq, G, Hq, ...] with row = (b * Nq + n) * G + g.
std::int64_t row_head_offset(const Tensor& tensor, bool packed, std::int64_t row, std::int64_t head) {
  if (packed) return offset_of(tensor, row, head);
  const std::int64_t g = row % tensor.shape[2];
  const std::int64_t n = row / tensor.shape[2] % tensor.shape[1];
  const std::int64_t b = row / tensor.shape[2] / tensor.shape[1];
  return offset_of(tensor, b, n, g, head);
}

std::int64_t num_rows(const QsaArguments& a) { return a.token_to_request.shape[0]; }

/// Rows before the first group and after the last are padding, as are rows at negative positions.
bool is_padding(const QsaConfig& config, const QsaArguments& a, std::int64_t row) {
  if (integer_at(a.query_positions, row) < 0) return true;
  if (!config.use_packed_q) return false;
  const std::int64_t groups = a.qo_indptr.shape[0] - 1;
  return row < integer_at(a.qo_indptr, 0) || row >= integer_at(a.qo_indptr, groups);
}

struct RowPlace {
  std::int64_t request = 0;
  std::int64_t position = 0;
  bool request_valid = false;
  bool position_valid = false;
};

RowPlace place_of(const QsaConfig& config, const QsaArguments& a, std::int64_t row) {
  RowPlace place;
  place.request = integer_at(a.token_to_request, row);
  place.position = integer_at(a.query_positions, row);
  place.request_valid = in_range(place.request, a.block_table.shape[0]);
  place.position_valid = in_range(place.position, config.max_seq_len_kv);
  return place;
}

std::int64_t selected_id(const QsaConfig& config, const QsaArguments& a, std::int64_t row, std::int64_t kv_head,
                         std::int64_t i) {
  return config.share_pattern_across_kv_heads ? integer_at(a.indexer_block_ids, row, i)
                                              : integer_at(a.indexer_block_ids, row, kv_head, i);
}

/// Blocks that the row attends to for a KV head: selected completed ones and the incomplete last one, if it has a
/// token.
std::set<std::int64_t> attended_blocks(const QsaConfig& config, const QsaArguments& a, const RowPlace& place,
                                       std::int64_t row, std::int64_t kv_head) {
  const std::int64_t done = (place.position + 1) / config.kv_block_size;
  std::set<std::int64_t> blocks;
  for (std::int64_t i = 0; i < std::min(config.block_topk, done); ++i) {
    const std::int64_t block = selected_id(config, a, row, kv_head, i);
    if (in_range(block, done)) blocks.insert(block);
  }
  if (done * config.kv_block_size <= place.position) blocks.insert(done);
  return blocks;
}

/// Physical page of a block, or -1 when block_table has none in range for it.
std::int64_t page_of(const QsaConfig& config, const QsaArguments& a, const RowPlace& place, std::int64_t block) {
  const std::int64_t column = block * config.kv_block_size / config.page_size;
  if (column >= a.block_table.shape[1]) return -1;
  const std::int64_t page = integer_at(a.block_table, place.request, column);
  return in_range(page, a.k_cache.shape[0]) ? page : -1;
}

KeySet attended_keys(const QsaConfig& config, const QsaArguments& a, std::int64_t row, std::int64_t kv_head) {
  KeySet keys;
  keys.head_dim = config.head_dim;
  const RowPlace place = place_of(config, a, row);
  if (is_padding(config, a, row) || !place.request_valid || !place.position_valid) return keys;

  for (const std::int64_t block : attended_blocks(config, a, place, row, kv_head)) {
    const std::int64_t page = page_of(config, a, place, block);
    if (page < 0) continue;
    const std::int64_t first = block * config.kv_block_size;
    const std::int64_t last = std::min(first + config.kv_block_size - 1, place.position);
    for (std::int64_t token = first; token <= last; ++token) {
      const std::int64_t slot = token % config.page_size;
      keys.add(a.k_cache, offset_of(a.k_cache, page, kv_head, slot), a.v_cache,
               offset_of(a.v_cache, page, kv_head, slot));
    }
  }
  return keys;
}

/// sigmoid in float32, as the contract says; for very negative gates exp overflows to infinity and the result is 0.
double sigmoid(double gate) { return 1.0f / (1.0f + std::exp(-static_cast<float>(gate))); }

}  // namespace

void qsa_row(const QsaConfig& config, const QsaArguments& a, std::int64_t row, const Row& result) {
  const std::int64_t group = config.num_qo_heads / config.num_kv_heads;
  const std::int64_t head_dim = config.head_dim;
  const double sm_scale = a.sm_scale ? scalar_value(*a.sm_scale) : 1.0 / std::sqrt(static_cast<double>(head_dim));
  const double v_scale = scalar_value(a.v_scale);

  for (std::int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
    const KeySet keys = attended_keys(config, a, row, kv_head);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      double* out = result.out + head * head_dim;
      const std::int64_t q_offset = row_head_offset(a.q, config.use_packed_q, row, head);
      const std::vector<double> logits = logits_of(a.q, q_offset, keys, sm_scale);
      result.lse[head] = log_sum_exp(logits);
      weighted_values(logits, result.lse[head], keys, v_scale, out);
      if (!a.output_gate.defined()) continue;
      const std::int64_t gate_offset = row_head_offset(a.output_gate, config.use_packed_q, row, head);
      for (std::int64_t d = 0; d < head_dim; ++d) {
        out[d] = rounded_to(config.out_dtype, out[d]) * sigmoid(number_at(a.output_gate, gate_offset + d));
      }
    }
  }
}

void qsa(const QsaConfig& config, const QsaArguments& a) {
  std::vector<double> out(config.num_qo_heads * config.head_dim), lse(config.num_qo_heads);
  for (std::int64_t row = 0; row < num_rows(a); ++row) {
    qsa_row(config, a, row, {out.data(), lse.data(), nullptr});
    for (std::int64_t head = 0; head < config.num_qo_heads; ++head) {
      const std::int64_t out_offset = row_head_offset(a.out, config.use_packed_q, row, head);
      for (std::int64_t d = 0; d < config.head_dim; ++d) {
        store_at(a.out, out_offset + d, out[head * config.head_dim + d]);
      }
      if (a.lse.defined()) store_at(a.lse, row_head_offset(a.lse, config.use_packed_q, row, head), lse[head]);
    }
  }
}

std::int64_t qsa_bad_indices(const QsaConfig& config, const QsaArguments& a) {
  std::int64_t bad = 0;
  const std::int64_t lists = config.share_pattern_across_kv_heads ? 1 : config.num_kv_heads;
  for (std::int64_t row = 0; row < num_rows(a); ++row) {
    if (is_padding(config, a, row)) continue;
    const RowPlace place = place_of(config, a, row);
    if (!place.request_valid) ++bad;
    if (!place.position_valid) ++bad;
    if (!place.request_valid || !place.position_valid) continue;

    const std::int64_t done = (place.position + 1) / config.kv_block_size;
    const bool has_tail = done * config.kv_block_size <= place.position;
    for (std::int64_t list = 0; list < lists; ++list) {
      for (std::int64_t i = 0; i < std::min(config.block_topk, done); ++i) {
        const std::int64_t block = selected_id(config, a, row, list, i);
        if (!in_range(block, done) || page_of(config, a, place, block) < 0) ++bad;
      }
      if (has_tail && page_of(config, a, place, done) < 0) ++bad;
    }
  }
  return bad;
}

}  // namespace kvsieve::reference
