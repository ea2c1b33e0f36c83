// SPDX-License-Identifier: Apache-2.0
//
// The host route builder against a plain restatement of the rules, on random and hostile index tensors.
#include "route/route_builder.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace kvsieve {
namespace {

using Random = std::mt19937_64;

std::int64_t uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// An index that is mostly in [0, count), sometimes garbage.
std::int32_t index(Random& random, std::int64_t count, bool hostile) {
  static constexpr std::int32_t garbage[] = {-1, -2, std::numeric_limits<std::int32_t>::min(),
                                             std::numeric_limits<std::int32_t>::max()};
  if (hostile && uniform(random, 0, 7) == 0) return garbage[uniform(random, 0, 3)];
  if (hostile && uniform(random, 0, 7) == 0) return static_cast<std::int32_t>(count + uniform(random, 0, 2));
  return static_cast<std::int32_t>(uniform(random, 0, std::max<std::int64_t>(count - 1, 0)));
}

/// A problem without K, V and q: only what routes depend on, with its tables.
struct Tables {
  AttentionProblem problem;
  std::vector<std::int32_t> page_table, kv_lengths, row_starts, ids, token_to_request, positions, bounds;
};

std::unique_ptr<Tables> random_tables(Random& random, bool qsa, bool hostile) {
  auto tables = std::make_unique<Tables>();
  AttentionProblem& p = tables->problem;
  p.num_requests = uniform(random, 1, 4);
  p.total_q = uniform(random, 1, 40);
  p.num_kv_heads = uniform(random, 1, 3);
  p.num_qo_heads = p.num_kv_heads * uniform(random, 1, 4);
  p.block_size = std::int64_t{4} << uniform(random, 0, 3);
  p.page_size = p.block_size * uniform(random, 1, 3);
  p.max_pages = uniform(random, 1, 6);
  p.num_pages = p.num_requests * p.max_pages + 1;
  p.topk = uniform(random, 0, 12);
  p.page_table_stride = p.max_pages;
  p.valid_prefix = uniform(random, 0, 1) == 1;
  p.causal = uniform(random, 0, 3) != 0;
  const std::int64_t capacity = p.max_pages * p.page_size;
  const std::int64_t max_blocks = capacity / p.block_size;
  for (std::int64_t i = 0; i < p.num_requests * p.max_pages; ++i) {
    tables->page_table.push_back(index(random, p.num_pages, hostile));
  }
  for (std::int64_t b = 0; b < p.num_requests; ++b) {
    tables->kv_lengths.push_back(index(random, capacity + 1, hostile));
    tables->row_starts.push_back(hostile ? index(random, p.total_q + 1, true)
                                         : static_cast<std::int32_t>(b * p.total_q / p.num_requests));
  }
  tables->row_starts.push_back(static_cast<std::int32_t>(p.total_q));
  for (std::int64_t i = 0; i < p.total_q * p.num_kv_heads * p.topk; ++i) {
    tables->ids.push_back(index(random, max_blocks, hostile));
  }
  for (std::int64_t row = 0; row < p.total_q; ++row) {
    const bool jump = uniform(random, 0, 4) == 0;  // neighbouring rows mostly share a request
    tables->token_to_request.push_back(row == 0 || jump ? index(random, p.num_requests, hostile)
                                                        : tables->token_to_request.back());
    tables->positions.push_back(index(random, capacity, hostile));
  }
  p.paged = true;
  p.page_table = tables->page_table.data();
  p.ids = tables->ids.data();
  p.ids_stride_row = p.topk;
  p.ids_stride_head = p.total_q * p.topk;
  if (qsa) {
    p.row_rule = RowRule::per_row;
    p.token_to_request = tables->token_to_request.data();
    p.positions32 = tables->positions.data();
    p.max_kv_length = capacity;
    p.valid_prefix = true;
  } else {
    p.row_rule = RowRule::cu_seqlens;
    p.kv_lengths = tables->kv_lengths.data();
    p.row_starts = tables->row_starts.data();
  }
  return tables;
}

/// The positions that a row attends to, one by one: (page, slot) -> position. Written from the rules of the public
/// headers, without the code under test.
std::map<std::int64_t, std::pair<std::int32_t, std::int64_t>> attended_tokens(const AttentionProblem& p, bool qsa,
                                                                              std::int64_t row, std::int64_t kv_head) {
  std::map<std::int64_t, std::pair<std::int32_t, std::int64_t>> tokens;
  std::int64_t request = -1;
  std::int64_t position = -1;
  std::int64_t last = -1;  // last visible position
  std::int64_t counted = 0;
  std::set<std::int64_t> blocks;
  const std::int32_t* ids = p.ids + row * p.ids_stride_row + kv_head * p.ids_stride_head;
  const std::int64_t capacity = p.max_pages * p.page_size;
  if (qsa) {
    request = p.token_to_request[row];
    position = p.positions32[row];
    if (request < 0 || request >= p.num_requests || position < 0 || position >= capacity) return tokens;
    last = position;
    const std::int64_t done = (position + 1) / p.block_size;
    counted = std::min(p.topk, done);
    for (std::int64_t i = 0; i < counted; ++i) {
      if (ids[i] >= 0 && ids[i] < done) blocks.insert(ids[i]);
    }
    blocks.insert(done);  // the tail
  } else {
    for (std::int64_t b = p.num_requests - 1; b >= 0; --b) {
      if (p.row_starts[b] <= row && row < p.row_starts[b + 1]) request = b;
    }
    if (request < 0) return tokens;
    const std::int64_t length = std::min<std::int64_t>(std::max(p.kv_lengths[request], 0), capacity);
    const std::int64_t num_rows = std::int64_t{p.row_starts[request + 1]} - p.row_starts[request];
    position = length - num_rows + (row - p.row_starts[request]);
    last = p.causal ? std::min(position, length - 1) : length - 1;
    const std::int64_t visible = last < 0 ? 0 : last / p.block_size + 1;
    counted = p.valid_prefix ? std::min(p.topk, visible) : p.topk;
    for (std::int64_t i = 0; i < counted; ++i) blocks.insert(ids[i]);
  }
  for (std::int64_t j = 0; j <= last; ++j) {
    if (blocks.count(j / p.block_size) == 0) continue;
    const std::int32_t page = p.page_table[request * p.max_pages + j / p.page_size];
    if (page >= 0 && page < p.num_pages) tokens[j] = {page, j % p.page_size};
  }
  return tokens;
}

void check_routes(Random& random, bool qsa, bool hostile) {
  const auto tables = random_tables(random, qsa, hostile);
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
        std::map<std::int64_t, std::pair<std::int32_t, std::int64_t>> routed;
        for (std::int64_t e = 0; e < route.num_entries; ++e) {
          const RouteEntry& entry = route.entries[e];
          ASSERT_NE(entry.members, 0u);
          ASSERT_EQ(entry.members >> (route.num_rows - 1) >> 1, 0u) << "a member that is not in the tile";
          if ((entry.members >> t & 1) == 0) continue;
          for (std::int64_t i = 0; i < p.block_size; ++i) {
            const std::int64_t position = entry.block * p.block_size + i;
            if (position > route.limits[t]) break;
            ASSERT_TRUE(routed.insert({position, {entry.page, entry.slot + i}}).second) << "a key comes twice";
          }
        }
        EXPECT_EQ(routed, attended_tokens(p, qsa, row + t, kv_head)) << "row " << row + t << ", KV head " << kv_head;
      }
      row += route.num_rows;
    }
  }
}

TEST(Route, MsaMatchesTheRules) {
  Random random(1);
  for (int i = 0; i < 300 && !HasFailure(); ++i) check_routes(random, false, false);
}

TEST(Route, QsaMatchesTheRules) {
  Random random(2);
  for (int i = 0; i < 300 && !HasFailure(); ++i) check_routes(random, true, false);
}

TEST(Route, HostileMsaIndicesAreSkipped) {
  Random random(3);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) check_routes(random, false, true);
}

TEST(Route, HostileQsaIndicesAreSkipped) {
  Random random(4);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) check_routes(random, true, true);
}

TEST(Route, NeighboursInATileStandInOrderOfMembership) {
  Random random(5);
  for (int i = 0; i < 100; ++i) {
    const auto tables = random_tables(random, true, false);
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
}  // namespace kvsieve
