// SPDX-License-Identifier: Apache-2.0
//
// MSA attention in float64 (kvsieve/msa.hpp has the formulas).
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "reference/reference.hpp"
#include "reference/softmax.hpp"

namespace kvsieve::reference {
namespace {

std::int64_t num_requests(const MsaArguments& a) {
  return a.page_table.defined() ? a.page_table.shape[0] : a.cu_seqlens_k.shape[0] - 1;
}

/// Where the keys of one request are. Flat: tokens start .. start + length of k. Paged: through page_table.
struct KeyRange {
  std::int64_t start = 0;
  std::int64_t length = 0;
  bool valid = true;  ///< false: the given range is out of range, and was emptied or clamped
};

KeyRange key_range(const MsaArguments& a, std::int64_t request) {
  if (a.page_table.defined()) {
    const std::int64_t capacity = a.page_table.shape[1] * a.k.shape[2];
    const std::int64_t length = integer_at(a.seqused_k, request);
    return {0, std::clamp<std::int64_t>(length, 0, capacity), length >= 0 && length <= capacity};
  }
  const std::int64_t begin = integer_at(a.cu_seqlens_k, request);
  const std::int64_t end = integer_at(a.cu_seqlens_k, request + 1);
  if (begin < 0 || end < begin || end > a.k.shape[0]) return {0, 0, false};
  return {begin, end - begin, true};
}

/// The request that owns a row, and where the row sits in it.
struct RowPlace {
  std::int64_t request = -1;  ///< -1: no request owns the row
  std::int64_t position = 0;
  KeyRange keys;
  std::int64_t limit = -1;  ///< the row may see keys 0 .. limit
};

RowPlace place_of(const MsaArguments& a, bool decode, std::int64_t row) {
  std::int64_t first_row = 0, rows = 0, request = -1;
  if (decode) {
    request = row / a.seqlen_q;
    first_row = request * a.seqlen_q;
    rows = a.seqlen_q;
  } else {
    for (std::int64_t b = 0; b < num_requests(a) && request < 0; ++b) {
      const std::int64_t begin = integer_at(a.cu_seqlens_q, b);
      const std::int64_t end = integer_at(a.cu_seqlens_q, b + 1);
      if (begin <= row && row < end) {
        request = b;
        first_row = begin;
        rows = end - begin;
      }
    }
  }
  RowPlace place;
  place.request = request;
  if (request < 0) return place;

  place.keys = key_range(a, request);
  const std::int64_t offset = a.q_offset.defined() ? integer_at(a.q_offset, request) : place.keys.length - rows;
  place.position = offset + (row - first_row);
  place.limit = a.causal ? std::min(place.position, place.keys.length - 1) : place.keys.length - 1;
  return place;
}

/// How many entries of a row of q2k_indices count; what stands behind them is garbage.
std::int64_t counting_ids(const MsaArguments& a, const RowPlace& place) {
  const std::int64_t topk = a.q2k_indices.shape[2];
  if (!a.valid_prefix) return topk;
  const std::int64_t visible_blocks = place.limit < 0 ? 0 : place.limit / a.block_size + 1;
  return std::min(topk, visible_blocks);
}

/// The blocks that a row has selected for a KV head and of which it sees at least one key.
std::set<std::int64_t> selected_blocks(const MsaArguments& a, const RowPlace& place, std::int64_t kv_head,
                                       std::int64_t row) {
  std::set<std::int64_t> blocks;
  for (std::int64_t i = 0; i < counting_ids(a, place); ++i) {
    const std::int64_t block = integer_at(a.q2k_indices, kv_head, row, i);
    if (block >= 0 && block * a.block_size <= place.limit) blocks.insert(block);
  }
  return blocks;
}

/// Physical page of a token of a request; out of [0, num_pages) when page_table says so.
std::int64_t page_of(const MsaArguments& a, std::int64_t request, std::int64_t token) {
  return integer_at(a.page_table, request, token / a.k.shape[2]);
}

/// True for an id that names no block of the request, or one that the row sees but for which there is no page.
bool is_bad_id(const MsaArguments& a, const RowPlace& place, std::int64_t id) {
  if (id == -1) return false;  // padding
  const std::int64_t first = id * a.block_size;
  if (!in_range(first, place.keys.length)) return true;
  return a.page_table.defined() && first <= place.limit && !in_range(page_of(a, place.request, first), a.k.shape[0]);
}

KeySet attended_keys(const MsaArguments& a, const RowPlace& place, std::int64_t kv_head, std::int64_t row) {
  KeySet keys;
  keys.head_dim = a.q.shape[2];
  for (const std::int64_t block : selected_blocks(a, place, kv_head, row)) {
    const std::int64_t first = block * a.block_size;
    const std::int64_t last = std::min(first + a.block_size - 1, place.limit);
    for (std::int64_t token = first; token <= last; ++token) {
      if (a.page_table.defined()) {
        const std::int64_t page = page_of(a, place.request, token);
        const std::int64_t slot = token % a.k.shape[2];
        if (!in_range(page, a.k.shape[0])) continue;
        keys.add(a.k, offset_of(a.k, page, kv_head, slot), a.v, offset_of(a.v, page, kv_head, slot));
      } else {
        const std::int64_t index = place.keys.start + token;
        keys.add(a.k, offset_of(a.k, index, kv_head), a.v, offset_of(a.v, index, kv_head));
      }
    }
  }
  return keys;
}

}  // namespace

void msa_row(const MsaArguments& a, bool decode, std::int64_t row, const Row& result) {
  const std::int64_t num_kv_heads = a.q2k_indices.shape[0];
  const std::int64_t group = a.q.shape[1] / num_kv_heads;
  const std::int64_t head_dim = a.q.shape[2];
  const double softmax_scale = a.softmax_scale ? *a.softmax_scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  const double logit_scale = softmax_scale * scalar_value(a.k_global_scale);
  const double v_scale = scalar_value(a.v_global_scale);
  const RowPlace place = place_of(a, decode, row);

  for (std::int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    const KeySet keys = attended_keys(a, place, kv_head, row);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const std::vector<double> logits = logits_of(a.q, offset_of(a.q, row, head), keys, logit_scale);
      result.lse[head] = log_sum_exp(logits);
      weighted_values(logits, result.lse[head], keys, v_scale, result.out + head * head_dim);
      if (result.lse_t != nullptr) result.lse_t[head] = log_sum_exp(logits, a.lse_temperature_scale);
    }
  }
}

void msa(const MsaArguments& a, bool decode) {
  const std::int64_t total_q = a.q.shape[0], num_heads = a.q.shape[1], head_dim = a.q.shape[2];
  std::vector<double> out(num_heads * head_dim), lse(num_heads), lse_t(num_heads);
  for (std::int64_t row = 0; row < total_q; ++row) {
    msa_row(a, decode, row, {out.data(), lse.data(), lse_t.data()});
    for (std::int64_t head = 0; head < num_heads; ++head) {
      for (std::int64_t d = 0; d < head_dim; ++d) {
        store_at(a.out, offset_of(a.out, row, head) + d, out[head * head_dim + d]);
      }
      if (a.lse.defined()) store_at(a.lse, offset_of(a.lse, row, head), lse[head]);
      if (a.lse_t.defined()) store_at(a.lse_t, offset_of(a.lse_t, row, head), lse_t[head]);
    }
  }
}

std::int64_t msa_bad_indices(const MsaArguments& a, bool decode) {
  std::int64_t bad = 0;
  for (std::int64_t request = 0; request < num_requests(a); ++request) bad += key_range(a, request).valid ? 0 : 1;

  for (std::int64_t row = 0; row < a.q.shape[0]; ++row) {
    const RowPlace place = place_of(a, decode, row);
    if (place.request < 0 || place.limit < 0) continue;  // a padded row: its ids mean nothing
    for (std::int64_t kv_head = 0; kv_head < a.q2k_indices.shape[0]; ++kv_head) {
      for (std::int64_t i = 0; i < counting_ids(a, place); ++i) {
        if (is_bad_id(a, place, integer_at(a.q2k_indices, kv_head, row, i))) ++bad;
      }
    }
  }
  return bad;
}

}  // namespace kvsieve::reference
