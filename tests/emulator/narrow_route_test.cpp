// SPDX-License-Identifier: Apache-2.0
//
// The routes that the decode kernel builds for itself against the host's, on random and hostile index tensors.
#include "route/narrow_route.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emulator/emulator.hpp"
#include "support/route_blocks.hpp"
#include "support/route_tables.hpp"

namespace kvsieve::test {
namespace {

constexpr int threads = 128;
using Route = cuda::NarrowRoute<threads>;

struct Built {
  std::vector<cuda::DeviceRouteEntry> entries;
  std::vector<cuda::TileRow> rows;
};

/// Shared memory: the route's object, the entries, then the table and the selections.
Built build(const AttentionProblem& problem, const cuda::DeviceRoutes& routes, std::int64_t row_begin, int num_rows,
            std::int64_t list) {
  const std::size_t entries_at = (sizeof(Route) + 15) / 16 * 16;
  const std::size_t words_at = entries_at + static_cast<std::size_t>(routes.capacity) * sizeof(cuda::DeviceRouteEntry);
  emulator::Grid grid;
  grid.blocks = 1;
  grid.threads = threads;
  grid.shared_bytes =
      words_at +
      static_cast<std::size_t>(cuda::narrow_route_words(routes.tile_rows, problem.topk, routes.dense_blocks)) * 4;
  Built built;
  emulator::run(grid, [&] {
    unsigned char* const shared = emulator::block_memory();
    auto* const route = reinterpret_cast<Route*>(shared);
    auto* const entries = reinterpret_cast<cuda::DeviceRouteEntry*>(shared + entries_at);
    const std::int32_t count = route->build(problem, routes, row_begin, num_rows, list,
                                            reinterpret_cast<std::uint32_t*>(shared + words_at), entries);
    if (threadIdx.x != 0) return;
    built.entries.assign(entries, entries + count);
    built.rows.assign(route->rows, route->rows + num_rows);
  });
  return built;
}

/// The route as the host's. Fails the test for entries that no route has.
void blocks_of(const AttentionProblem& problem, const cuda::DeviceRoutes& routes, const Built& built, Blocks& blocks) {
  ASSERT_LE(built.entries.size(), static_cast<std::size_t>(routes.capacity));
  for (const cuda::DeviceRouteEntry& entry : built.entries) {
    ASSERT_NE(entry.members, 0u) << "a block that no row selected";
    std::int32_t request = -1;
    for (std::size_t row = 0; row < 32; ++row) {
      if ((entry.members >> row & 1) == 0) continue;
      ASSERT_LT(row, built.rows.size()) << "a member that is not in the tile";
      ASSERT_TRUE(request < 0 || built.rows[row].request == request) << "rows of two requests share an entry";
      request = built.rows[row].request;
    }
    const BlockLocation place = cuda::locate_block(problem, routes, request, entry.block);
    if (place.page < 0) continue;
    const bool is_new = blocks.insert({{request, entry.block}, {place.page, place.slot, entry.members}}).second;
    ASSERT_TRUE(is_new) << "block " << entry.block << " of request " << request << " comes twice";
  }
}

void compare(const AttentionProblem& problem, std::int64_t tile_rows) {
  cuda::DeviceRoutes routes;
  routes.tile_rows = tile_rows;
  routes.capacity = tile_rows * (problem.topk + 1);
  if (problem.paged) routes.blocks_per_page = static_cast<std::uint32_t>(problem.page_size / problem.block_size);
  routes.dense_blocks = static_cast<std::int32_t>(most_blocks(problem));
  const std::int64_t lists = problem.shared_selection ? 1 : problem.num_kv_heads;
  for (std::int64_t row = 0; row < problem.total_q; row += tile_rows) {
    const std::int64_t end = std::min(row + tile_rows, problem.total_q);
    for (std::int64_t list = 0; list < lists; ++list) {
      Blocks blocks;
      const Built built = build(problem, routes, row, static_cast<int>(end - row), list);
      ASSERT_NO_FATAL_FAILURE(blocks_of(problem, routes, built, blocks));
      ASSERT_EQ(blocks, host_blocks(problem, list, row, end)) << "rows from " << row << ", list " << list;
    }
  }
}

TEST(NarrowRoute, IsTheHostsRoute) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RouteRandom random(seed);
    TableOptions options;
    options.qsa = seed % 2 == 1;
    options.hostile = seed % 3 == 0;
    options.topk = seed % 5 == 0 ? 300 : 12;
    options.total_q = 20;
    const auto tables = random_tables(random, options);
    for (const std::int64_t tile_rows : {1, 2, 3, 4, 7, 32}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", tile rows " + std::to_string(tile_rows));
      ASSERT_NO_FATAL_FAILURE(compare(tables->problem, tile_rows));
    }
  }
}

}  // namespace
}  // namespace kvsieve::test
