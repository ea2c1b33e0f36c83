// SPDX-License-Identifier: Apache-2.0
//
// The device's route builder against the host's: the same blocks, places and memberships in every tile, on random and
// hostile index tensors. Only the order of the entries may differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/device_memory.hpp"
#include "route/route_builder.hpp"
#include "route/route_cuda.hpp"
#include "support/gpu_tools.hpp"
#include "support/route_tables.hpp"

namespace kvsieve::test {
namespace {

/// The blocks of a tile: (request, block) -> (page, slot, members).
using Blocks = std::map<std::pair<std::int32_t, std::int32_t>, std::tuple<std::int32_t, std::int32_t, std::uint32_t>>;

/// The host's routes of a window of rows, which it cuts by request, as one.
Blocks host_blocks(const AttentionProblem& problem, std::int64_t kv_head, std::int64_t row_begin,
                   std::int64_t row_end) {
  const std::int64_t max_entries = max_tile_rows * (problem.topk + 1);
  const std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(64, (RouteBuilder::memory_bytes(max_entries) + 63) / 64 * 64), &std::free);
  RouteBuilder builder(memory.get(), max_tile_rows, max_entries);
  Blocks blocks;
  for (std::int64_t row = row_begin; row < row_end;) {
    const Route route = builder.build(problem, kv_head, row, row_end);
    const std::int32_t request = row_target(problem, row).request;
    for (std::int64_t e = 0; e < route.num_entries; ++e) {
      const RouteEntry& entry = route.entries[e];
      // A request may come back after another one's rows.
      auto& [page, slot, members] = blocks[{request, entry.block}];
      page = entry.page;
      slot = entry.slot;
      members |= entry.members << (row - row_begin);
    }
    row += route.num_rows;
  }
  return blocks;
}

/// How the device builds routes: with a hash table, or with a word for each block that a request can have; and in what
/// order it then writes the entries, on which the blocks do not depend.
struct Method {
  std::int64_t dense_blocks = 0;  ///< 0: the hash table
  int warpgroups = 1;
};

void choose_method(cuda::DeviceRoutes& routes, const Method& method) {
  routes.dense_blocks = static_cast<std::int32_t>(method.dense_blocks);
  routes.order.warpgroups = method.warpgroups;
  routes.order.warpgroup_rows = static_cast<int>((routes.tile_rows + method.warpgroups - 1) / method.warpgroups);
}

/// Blocks that a request can have, by the size of its tables.
std::int64_t most_blocks(const AttentionProblem& p) {
  const std::int64_t tokens = p.paged ? p.max_pages * p.page_size : p.page_size;
  return (tokens + p.block_size - 1) / p.block_size;
}

/// Routes of a problem, built on the device and copied back.
struct BuiltRoutes {
  cuda::DeviceRoutes routes;  ///< pointers are the device's
  std::vector<cuda::DeviceRouteEntry> entries;
  std::vector<std::int32_t> counts;
  std::vector<cuda::DeviceRow> rows;
  bool guards_intact = false;
};

BuiltRoutes build_on_device(const RouteTables& tables, std::int64_t tile_rows, const Method& method) {
  GuardedDeviceMemory memory;
  std::vector<const std::int32_t*> copies;
  for (const std::vector<std::int32_t>* const table : tables.tables()) {
    std::byte* const copy = memory.allocate(table->size() * 4);
    cuda::copy(copy, table->data(), table->size() * 4);
    copies.push_back(reinterpret_cast<const std::int32_t*>(copy));
  }
  const AttentionProblem problem = tables.with_tables(copies);

  BuiltRoutes built;
  cuda::DeviceRoutes& routes = built.routes;
  routes.tile_rows = tile_rows;
  routes.num_tiles = (problem.total_q + tile_rows - 1) / tile_rows;
  routes.num_lists = problem.shared_selection ? 1 : problem.num_kv_heads;
  routes.capacity = tile_rows * (problem.topk + 1);
  if (problem.paged) routes.blocks_per_page = static_cast<std::uint32_t>(problem.page_size / problem.block_size);
  choose_method(routes, method);
  const std::int64_t num_routes = routes.num_tiles * routes.num_lists;
  built.entries.resize(static_cast<std::size_t>(num_routes * routes.capacity));
  built.counts.resize(static_cast<std::size_t>(num_routes));
  built.rows.resize(static_cast<std::size_t>(problem.total_q));
  const std::size_t entry_bytes = built.entries.size() * sizeof(cuda::DeviceRouteEntry);
  const std::size_t row_bytes = built.rows.size() * sizeof(cuda::DeviceRow);
  routes.entries = reinterpret_cast<cuda::DeviceRouteEntry*>(memory.allocate(entry_bytes));
  routes.counts = reinterpret_cast<std::int32_t*>(memory.allocate(built.counts.size() * 4));
  routes.rows = reinterpret_cast<cuda::DeviceRow*>(memory.allocate(row_bytes));
  std::byte* const hash_tables = memory.allocate(cuda::route_table_bytes(routes.capacity, num_routes));
  cuda::build_routes(problem, routes, hash_tables, gpu.index, nullptr);
  cuda::synchronize(gpu.index);
  cuda::copy(built.entries.data(), routes.entries, entry_bytes);
  cuda::copy(built.counts.data(), routes.counts, built.counts.size() * 4);
  cuda::copy(built.rows.data(), routes.rows, row_bytes);
  built.guards_intact = memory.intact();
  return built;
}

/// The device's route of one tile and list. Fails the test for entries that no route has.
void device_blocks(const BuiltRoutes& built, std::int64_t tile, std::int64_t list, std::int64_t num_rows,
                   Blocks& blocks) {
  const std::int64_t route = tile * built.routes.num_lists + list;
  const std::int32_t count = built.counts[static_cast<std::size_t>(route)];
  ASSERT_GE(count, 0);
  ASSERT_LE(count, built.routes.capacity);
  for (std::int32_t e = 0; e < count; ++e) {
    const cuda::DeviceRouteEntry& entry = built.entries[static_cast<std::size_t>(route * built.routes.capacity + e)];
    if (built.routes.dense_blocks > 0 && entry.members == 0) continue;  // its page is out of range
    ASSERT_NE(entry.members, 0u) << "a block that no row selected";
    std::int32_t request = -1;
    for (std::int64_t t = 0; t < 32; ++t) {
      if ((entry.members >> t & 1) == 0) continue;
      ASSERT_LT(t, num_rows) << "a member that is not in the tile";
      const std::int32_t owner = built.rows[static_cast<std::size_t>(tile * built.routes.tile_rows + t)].request;
      ASSERT_TRUE(request < 0 || owner == request) << "rows of two requests share an entry";
      request = owner;
    }
    const bool is_new = blocks.insert({{request, entry.block}, {entry.page, entry.slot, entry.members}}).second;
    ASSERT_TRUE(is_new) << "block " << entry.block << " of request " << request << " comes twice";
  }
}

void compare_routes(const RouteTables& tables, const BuiltRoutes& built) {
  const AttentionProblem& problem = tables.problem;
  EXPECT_TRUE(built.guards_intact) << "memory outside the routes was written";
  for (std::int64_t row = 0; row < problem.total_q; ++row) {
    const RowTarget target = row_target(problem, row);
    const cuda::DeviceRow& got = built.rows[static_cast<std::size_t>(row)];
    ASSERT_EQ(got.request, target.request) << "row " << row;
    ASSERT_EQ(got.limit, target.limit) << "row " << row;
  }
  for (std::int64_t tile = 0; tile < built.routes.num_tiles; ++tile) {
    const std::int64_t row_begin = tile * built.routes.tile_rows;
    const std::int64_t row_end = std::min(row_begin + built.routes.tile_rows, problem.total_q);
    for (std::int64_t list = 0; list < built.routes.num_lists; ++list) {
      Blocks blocks;
      ASSERT_NO_FATAL_FAILURE(device_blocks(built, tile, list, row_end - row_begin, blocks));
      ASSERT_EQ(blocks, host_blocks(problem, list, row_begin, row_end)) << "tile " << tile << ", list " << list;
    }
  }
}

/// Builds the routes of a problem by every method and compares each with the host's.
void check_every_method(const RouteTables& tables, std::int64_t tile_rows) {
  std::vector<Method> methods = {{}};
  const std::int64_t blocks = most_blocks(tables.problem);
  if (blocks <= cuda::max_dense_blocks) {
    for (const int warpgroups : {1, 2, 3}) methods.push_back({blocks, warpgroups});
  }
  for (const Method& method : methods) {
    SCOPED_TRACE("dense blocks " + std::to_string(method.dense_blocks) + ", warpgroups " +
                 std::to_string(method.warpgroups) + ", tile rows " + std::to_string(tile_rows) + ", top-k " +
                 std::to_string(tables.problem.topk));
    compare_routes(tables, build_on_device(tables, tile_rows, method));
  }
}

struct RouteKind {
  const char* name;
  TableOptions options;
  int count;  ///< problems
};

/// Several of a kind are larger than the hash table in shared memory holds.
constexpr TableOptions large(bool qsa, bool hostile) {
  return {.qsa = qsa, .hostile = hostile, .topk = 400, .max_pages = 60, .total_q = 100};
}

const RouteKind route_kinds[] = {
    {"Msa", {.qsa = false}, 150},
    {"Qsa", {.qsa = true}, 150},
    {"HostileMsa", {.qsa = false, .hostile = true}, 400},
    {"HostileQsa", {.qsa = true, .hostile = true}, 400},
    {"LargeMsa", large(false, false), 32},
    {"LargeQsa", large(true, false), 32},
    {"LargeHostileMsa", large(false, true), 32},
    {"LargeHostileQsa", large(true, true), 32},
};

class GpuRoute : public GpuTest, public testing::WithParamInterface<RouteKind> {};

TEST_P(GpuRoute, EqualsTheHostBuilder) {
  const RouteKind& kind = GetParam();
  RouteRandom random(6);
  for (int i = 0; i < kind.count && !HasFailure(); ++i) {
    const std::unique_ptr<RouteTables> tables = random_tables(random, kind.options);
    SCOPED_TRACE("problem " + std::to_string(i));
    check_every_method(*tables, 1 + i % max_tile_rows);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuRoute, testing::ValuesIn(route_kinds),
                         [](const auto& test) { return std::string(test.param.name); });

/// Rows of QSA with 4 keys a block and an id list of their own, whose page table is the identity.
std::unique_ptr<RouteTables> qsa_tables(std::int64_t requests, std::int64_t rows, std::int64_t topk,
                                        std::int64_t max_pages) {
  auto tables = std::make_unique<RouteTables>();
  AttentionProblem& p = tables->problem;
  p.num_requests = requests;
  p.total_q = rows;
  p.num_qo_heads = p.num_kv_heads = 1;
  p.block_size = 4;
  p.page_size = 64;
  p.topk = topk;
  p.max_pages = p.page_table_stride = max_pages;
  p.num_pages = requests * max_pages;
  p.paged = true;
  p.row_rule = RowRule::per_row;
  p.valid_prefix = true;
  p.max_kv_length = max_pages * p.page_size;
  p.ids_stride_row = topk;
  for (std::int64_t i = 0; i < p.num_pages; ++i) tables->page_table.push_back(static_cast<std::int32_t>(i));
  return tables;
}

/// Points the problem at its tables, once they are filled.
void connect(RouteTables& tables) {
  std::vector<const std::int32_t*> own;
  for (const std::vector<std::int32_t>* const table : tables.tables()) own.push_back(table->data());
  tables.problem = tables.with_tables(own);
}

class GpuRouteTile : public GpuTest {};

TEST_F(GpuRouteTile, DisjointSelectionsFillTheCapacity) {
  // 32 rows of 700 blocks that no other row selects, and a tail block: the longest list that there can be.
  constexpr std::int64_t topk = 700;
  const auto tables = qsa_tables(1, max_tile_rows, topk, max_tile_rows * (topk + 1) * 4 / 64 + 2);
  for (std::int64_t row = 0; row < max_tile_rows; ++row) {
    tables->token_to_request.push_back(0);
    // Each row's tail block is its own too.
    tables->positions.push_back(static_cast<std::int32_t>((max_tile_rows * topk + row) * 4));
    for (std::int64_t i = 0; i < topk; ++i) tables->ids.push_back(static_cast<std::int32_t>(i * max_tile_rows + row));
  }
  connect(*tables);
  check_every_method(*tables, max_tile_rows);
  const BuiltRoutes built = build_on_device(*tables, max_tile_rows, {});
  EXPECT_EQ(built.counts[0], built.routes.capacity);
}

TEST_F(GpuRouteTile, RequestsWithoutBlocksComeFirst) {
  // The first requests of a tile have no page, the last one does: what was read for those must not stand in for its
  // ids.
  constexpr std::int64_t topk = 300, requests = 3;
  const auto tables = qsa_tables(requests, max_tile_rows, topk, 100);
  AttentionProblem& p = tables->problem;
  std::fill(tables->page_table.begin(), tables->page_table.begin() + (requests - 1) * p.max_pages, -1);
  RouteRandom random(7);
  for (std::int64_t row = 0; row < max_tile_rows; ++row) {
    tables->token_to_request.push_back(static_cast<std::int32_t>(std::min(row / 2, requests - 1)));
    tables->positions.push_back(static_cast<std::int32_t>(p.max_kv_length - 2 - row));
    for (std::int64_t i = 0; i < topk; ++i) tables->ids.push_back(static_cast<std::int32_t>(uniform(random, 0, 1500)));
  }
  connect(*tables);
  check_every_method(*tables, max_tile_rows);
}

}  // namespace
}  // namespace kvsieve::test
