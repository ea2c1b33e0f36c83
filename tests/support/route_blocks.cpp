// SPDX-License-Identifier: Apache-2.0
#include "support/route_blocks.hpp"

#include <cstdlib>
#include <memory>

#include "route/route_builder.hpp"
#include "route/row_map.hpp"

namespace kvsieve::test {

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

std::int64_t most_blocks(const AttentionProblem& problem) {
  const std::int64_t tokens = problem.paged ? problem.max_pages * problem.page_size : problem.page_size;
  return (tokens + problem.block_size - 1) / problem.block_size;
}

}  // namespace kvsieve::test
