// SPDX-License-Identifier: Apache-2.0
//
// What the query rows of a tile may see, in 32 bits, and where blocks lie: what those who build routes on the device
// share.
#pragma once

#include "core/problem.hpp"
#include "route/route_cuda.hpp"
#include "route/row_map.hpp"

namespace kvsieve::cuda {

/// RowTarget in 32 bits: what the CUDA paths take has fewer than 2^31 tokens and 2^27 - 1 blocks a request.
struct TileRow {
  std::int32_t request, limit, num_blocks, num_ids, tail_block;
};

__device__ inline TileRow tile_row(const AttentionProblem& problem, std::int64_t row) {
  const RowTarget target = row_target(problem, row);
  // 64-bit positions may lie far past what any page table covers.
  constexpr std::int64_t last_position = 0x7FFFFFFE;
  constexpr std::int64_t last_block = (1 << 27) - 3;  // fits a key of the hash table
  return {target.request, static_cast<std::int32_t>(smaller(target.limit, last_position)),
          static_cast<std::int32_t>(smaller(target.num_blocks, last_block + 1)),
          static_cast<std::int32_t>(target.num_ids),
          target.tail_block <= last_block ? static_cast<std::int32_t>(target.tail_block) : -1};
}

/// locate_block() in 32 bits.
__device__ inline BlockLocation locate_block(const AttentionProblem& problem, const DeviceRoutes& routes,
                                             std::int32_t request, std::int32_t block) {
  const auto block_size = static_cast<std::uint32_t>(problem.block_size);
  if (problem.kv_starts != nullptr) {
    return {0, static_cast<std::int32_t>(problem.kv_starts[request] + static_cast<std::uint32_t>(block) * block_size)};
  }
  const std::uint32_t logical_page = static_cast<std::uint32_t>(block) / routes.blocks_per_page;
  if (logical_page >= problem.max_pages) return {};
  const std::int32_t page = problem.page_table[request * problem.page_table_stride + logical_page];
  if (page < 0 || page >= problem.num_pages) return {};
  return {page, static_cast<std::int32_t>((block - logical_page * routes.blocks_per_page) * block_size)};
}

/// Brings the page table of a request near: all at once rather than block after block. All kThreads threads.
template <int kThreads>
__device__ inline void touch_page_table(const AttentionProblem& problem, const DeviceRoutes& routes,
                                        std::int32_t request, std::int32_t num_blocks) {
  const std::int32_t* const table = problem.page_table + request * problem.page_table_stride;
  const auto pages = static_cast<std::uint32_t>(problem.max_pages);
  const std::uint32_t needed = static_cast<std::uint32_t>(num_blocks) / routes.blocks_per_page + 1;
  for (std::uint32_t i = threadIdx.x * 8; i < min(pages, needed); i += kThreads * 8) {  // a sector each
    prefetch_l1(table + i);
  }
}

}  // namespace kvsieve::cuda
