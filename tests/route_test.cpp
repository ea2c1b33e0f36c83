// SPDX-License-Identifier: Apache-2.0
//
// The host route builder against a plain restatement of the rules, on random and hostile index tensors.
#include "route/route_builder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "support/route_tables.hpp"
#include "support/selection_rules.hpp"

namespace kvsieve::test {
namespace {

void check_routes(RouteRandom& random, bool qsa, bool hostile) {
  const auto tables = random_tables(random, {.qsa = qsa, .hostile = hostile});
  const AttentionProblem& p = tables->problem;
  const std::int64_t tile_rows = uniform(random, 1, 32);
  const std::int64_t max_entries = tile_rows * (p.topk + 1);
  const std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(64, (RouteBuilder::memory_bytes(max_entries) + 63) / 64 * 64), &std::free);
  RouteBuilder builder(memory.get(), tile_rows, max_entries);
  for (std::int64_t kv_head = 0; kv_head < p.num_kv_heads; ++kv_head) {
    std::int64_t row = 0;
    while (row < p.total_q) {
      const Route route = builder.build(p, kv_head, row, p.total_q);
      ASSERT_GE(route.num_rows, 1);
      ASSERT_LE(route.num_rows, tile_rows);
      ASSERT_LE(row + route.num_rows, p.total_q);
      ASSERT_LE(route.num_entries, max_entries);
      for (std::int64_t t = 0; t < route.num_rows; ++t) {
        std::vector<AttendedToken> routed;
        for (std::int64_t e = 0; e < route.num_entries; ++e) {
          const RouteEntry& entry = route.entries[e];
          ASSERT_NE(entry.members, 0u);
          ASSERT_EQ(entry.members >> (route.num_rows - 1) >> 1, 0u) << "a member that is not in the tile";
          if ((entry.members >> t & 1) == 0) continue;
          for (std::int64_t i = 0; i < p.block_size; ++i) {
            const std::int64_t position = entry.block * p.block_size + i;
            if (position > route.limits[t]) break;
            routed.push_back({position, entry.page, entry.slot + i});
          }
        }
        // A key that comes twice is no equal list.
        std::ranges::sort(routed, {}, &AttendedToken::position);
        EXPECT_EQ(routed, attended_tokens(p, row + t, kv_head)) << "row " << row + t << ", KV head " << kv_head;
      }
      row += route.num_rows;
    }
  }
}

TEST(Route, MsaMatchesTheRules) {
  RouteRandom random(1);
  for (int i = 0; i < 300 && !HasFailure(); ++i) check_routes(random, false, false);
}

TEST(Route, QsaMatchesTheRules) {
  RouteRandom random(2);
  for (int i = 0; i < 300 && !HasFailure(); ++i) check_routes(random, true, false);
}

TEST(Route, HostileMsaIndicesAreSkipped) {
  RouteRandom random(3);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) check_routes(random, false, true);
}

TEST(Route, HostileQsaIndicesAreSkipped) {
  RouteRandom random(4);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) check_routes(random, true, true);
}

TEST(Route, NeighboursInATileStandInOrderOfMembership) {
  RouteRandom random(5);
  for (int i = 0; i < 100; ++i) {
    const auto tables = random_tables(random, {.qsa = true});
    const AttentionProblem& p = tables->problem;
    const std::int64_t max_entries = max_tile_rows * (p.topk + 1);
    std::vector<std::uint64_t> memory(RouteBuilder::memory_bytes(max_entries) / 8 + 1);
    RouteBuilder builder(memory.data(), max_tile_rows, max_entries);
    const Route route = builder.build(p, 0, 0, p.total_q);
    for (std::int64_t e = 1; e < route.num_entries && route.num_rows > 1; ++e) {
      EXPECT_LE(route.entries[e].members, route.entries[e - 1].members);
    }
  }
}

}  // namespace
}  // namespace kvsieve::test
