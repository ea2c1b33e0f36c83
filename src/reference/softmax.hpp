// SPDX-License-Identifier: Apache-2.0
//
// Attention of one query vector to a set of keys, in two passes: all logits first, then the weighted sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/access.hpp"

namespace kvsieve::reference {

/// Exactly the keys and values that a row attends to, copied out of the cache: k and v are [count, head_dim].
struct KeySet {
  std::int64_t head_dim = 0;
  std::int64_t count = 0;
  std::vector<double> k, v;

  /// Adds the token whose key and value start at these element offsets.
  void add(const Tensor& k_cache, std::int64_t k_offset, const Tensor& v_cache, std::int64_t v_offset) {
    ++count;
    for (std::int64_t d = 0; d < head_dim; ++d) {
      k.push_back(number_at(k_cache, k_offset + d));
      v.push_back(number_at(v_cache, v_offset + d));
    }
  }
};

/// log(sum_j exp(temperature * logits[j])), -infinity for no logits.
inline double log_sum_exp(const std::vector<double>& logits, double temperature = 1.0) {
  if (logits.empty()) return -std::numeric_limits<double>::infinity();
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(temperature * (logit - largest));
  return temperature * largest + std::log(sum);
}

/// scale * dot(q, k_j) for every key, where q starts at element q_offset of its tensor.
inline std::vector<double> logits_of(const Tensor& q, std::int64_t q_offset, const KeySet& keys, double scale) {
  std::vector<double> query(keys.head_dim);
  for (std::int64_t d = 0; d < keys.head_dim; ++d) query[d] = number_at(q, q_offset + d);

  std::vector<double> logits(keys.count);
  for (std::int64_t j = 0; j < keys.count; ++j) {
    double dot = 0.0;
    for (std::int64_t d = 0; d < keys.head_dim; ++d) dot += query[d] * keys.k[j * keys.head_dim + d];
    logits[j] = scale * dot;
  }
  return logits;
}

/// out[d] = scale * sum_j exp(logits[j] - lse) * v_j[d]; zero for no keys.
inline void weighted_values(const std::vector<double>& logits, double lse, const KeySet& keys, double scale,
                            double* out) {
  std::fill_n(out, keys.head_dim, 0.0);
  for (std::int64_t j = 0; j < keys.count; ++j) {
    const double weight = scale * std::exp(logits[j] - lse);
    for (std::int64_t d = 0; d < keys.head_dim; ++d) out[d] += weight * keys.v[j * keys.head_dim + d];
  }
}

}  // namespace kvsieve::reference
