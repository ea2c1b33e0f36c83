// SPDX-License-Identifier: Apache-2.0
//
// What both examples need and an engine already has: bf16 numbers, a paged KV cache, and attention written the slow way
// to compare with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

using Bf16 = std::uint16_t;

inline float to_float(Bf16 bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<Bf16>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline std::vector<Bf16> random_bf16(std::int64_t count, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(static_cast<std::size_t>(count));
  for (Bf16& value : values) value = to_bf16(normal(generator));
  return values;
}

/// K and V as [num_pages, num_kv_heads, page_size, head_dim], and for each request the pages that hold its tokens, in
/// an order that is random, as it is in an engine that has been running for a while.
struct PagedCache {
  std::int64_t num_requests, max_pages, num_kv_heads, page_size, head_dim;
  std::vector<Bf16> k, v;
  std::vector<std::int32_t> page_table;  // [num_requests, max_pages]

  PagedCache(std::int64_t requests, std::int64_t pages, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
             std::mt19937& generator)
      : num_requests(requests), max_pages(pages), num_kv_heads(heads), page_size(tokens), head_dim(dim) {
    k = random_bf16(num_pages() * heads * tokens * dim, generator);
    v = random_bf16(num_pages() * heads * tokens * dim, generator);
    page_table.resize(static_cast<std::size_t>(num_pages()));
    std::iota(page_table.begin(), page_table.end(), 0);
    std::shuffle(page_table.begin(), page_table.end(), generator);
  }

  std::int64_t num_pages() const { return num_requests * max_pages; }

  /// Where the head_dim numbers of one token and KV head begin, in k and in v.
  std::int64_t offset(std::int64_t request, std::int64_t token, std::int64_t head) const {
    const std::int64_t page = page_table[static_cast<std::size_t>(request * max_pages + token / page_size)];
    return ((page * num_kv_heads + head) * page_size + token % page_size) * head_dim;
  }
};

/// Attention of one query head over the given tokens of a request, in double.
inline std::vector<double> slow_attention(const PagedCache& cache, const Bf16* query, std::int64_t request,
                                          std::int64_t kv_head, const std::vector<std::int64_t>& tokens) {
  const std::int64_t dim = cache.head_dim;
  std::vector<double> out(static_cast<std::size_t>(dim), 0.0);
  double sum = 0.0;
  for (const std::int64_t token : tokens) {
    const Bf16* key = cache.k.data() + cache.offset(request, token, kv_head);
    const Bf16* value = cache.v.data() + cache.offset(request, token, kv_head);
    double logit = 0.0;
    for (std::int64_t d = 0; d < dim; ++d) logit += static_cast<double>(to_float(query[d])) * to_float(key[d]);
    const double weight = std::exp(logit / std::sqrt(static_cast<double>(dim)));
    for (std::int64_t d = 0; d < dim; ++d) out[static_cast<std::size_t>(d)] += weight * to_float(value[d]);
    sum += weight;
  }
  for (double& element : out) element /= sum;
  return out;
}

/// `count` different numbers of [0, limit), in random order.
inline std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t limit, std::mt19937& generator) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(limit));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), generator);
  ids.resize(static_cast<std::size_t>(std::min(count, limit)));
  return ids;
}
