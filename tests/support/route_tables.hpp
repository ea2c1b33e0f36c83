// SPDX-License-Identifier: Apache-2.0
//
// Random problems for tests of route: index tensors without q, K and V.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/problem.hpp"

namespace kvsieve::test {

using RouteRandom = std::mt19937_64;

/// Uniform in [low, high].
std::int64_t uniform(RouteRandom& random, std::int64_t low, std::int64_t high);

/// What random tables look like; sizes are upper bounds.
struct TableOptions {
  bool qsa = false;
  bool hostile = false;  ///< garbage in every index tensor
  std::int64_t topk = 12;
  std::int64_t max_pages = 6;
  std::int64_t total_q = 40;
};

/// A problem without K, V and q: only what routes depend on, with the tables that it points to.
struct RouteTables {
  AttentionProblem problem;
  std::vector<std::int32_t> page_table, kv_lengths, kv_starts, row_starts, q_offset;
  std::vector<std::int32_t> ids, token_to_request, positions, bounds;

  /// The problem with other memory behind its pointers: copies[i] for tables()[i].
  AttentionProblem with_tables(const std::vector<const std::int32_t*>& copies) const;
  /// All tables; those that the problem does not use are empty.
  std::vector<const std::vector<std::int32_t>*> tables() const;
};

/// MSA (prefill or decode, paged or flat) or QSA, with a selection per KV head or a shared one.
std::unique_ptr<RouteTables> random_tables(RouteRandom& random, const TableOptions& options);

}  // namespace kvsieve::test
