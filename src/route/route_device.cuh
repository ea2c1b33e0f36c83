// SPDX-License-Identifier: Apache-2.0
//
// The route of one tile, built by one thread block: the union of what its rows selected, each block with its members.
#pragma once

#include <cub/block/block_scan.cuh>

#include "route/route_cuda.hpp"
#include "route/row_map.hpp"

namespace kvsieve::cuda {

/// Open-addressing hash table of the blocks that a tile selects, in memory of `3 * slots` words.
struct RouteTable {
  static constexpr int row_bits = 5;  // a key is (first row of its request's run in the tile, block)
  static constexpr std::uint32_t free_key = 0xFFFFFFFFu;

  std::uint32_t* keys;
  std::uint32_t* members;
  std::uint32_t* first;  ///< smallest index of a selection that names the block: gives entries a fixed order
  std::uint32_t mask;

  __device__ RouteTable(std::uint32_t* memory, std::uint32_t slots)
      : keys(memory), members(memory + slots), first(memory + 2 * slots), mask(slots - 1) {}

  __device__ static std::uint32_t key_of(std::int32_t block, std::uint32_t request_row) {
    return static_cast<std::uint32_t>(block) << row_bits | request_row;
  }

  __device__ std::uint32_t start(std::uint32_t key) const { return (key * 0x9E3779B1u) >> 7 & mask; }

  __device__ void insert(std::uint32_t key, std::uint32_t member, std::uint32_t index) {
    std::uint32_t slot = start(key);
    for (;;) {
      const std::uint32_t found = atomicCAS(keys + slot, free_key, key);
      if (found == free_key || found == key) break;
      slot = (slot + 1) & mask;
    }
    atomicOr(members + slot, member);
    atomicMin(first + slot, index);
  }

  __device__ std::uint32_t find(std::uint32_t key) const {
    std::uint32_t slot = start(key);
    while (keys[slot] != key) slot = (slot + 1) & mask;
    return slot;
  }
};

/// Builds the route of a tile of at most 32 rows from `row_begin`. All kThreads threads of the block take part; its
/// shared memory holds this object.
template <int kThreads>
struct TileRoute {
  using Scan = cub::BlockScan<std::int32_t, kThreads>;

  struct Row {
    std::int32_t request, limit, num_blocks, num_ids, tail_block;
    std::uint32_t request_row;  ///< the tile's first row with the same request
  };
  Row rows[32];
  typename Scan::TempStorage scan;

  /// Block that selection `index` names, or -1: selections of a row are its ids, then its tail block. Sets the row and,
  /// for a block, its place.
  __device__ std::int32_t selected_block(const AttentionProblem& problem, std::int64_t row_begin, std::int64_t list,
                                         std::uint32_t index, int& row, BlockLocation& place) const {
    const auto per_row = static_cast<std::uint32_t>(problem.topk + 1);
    row = static_cast<int>(index / per_row);
    const auto i = static_cast<std::int32_t>(index % per_row);
    const Row& target = rows[row];
    if (target.limit < 0) return -1;
    std::int32_t block = target.tail_block;
    if (i < problem.topk) {
      if (i >= target.num_ids) return -1;
      block = problem.ids[(row_begin + row) * problem.ids_stride_row + list * problem.ids_stride_head + i];
      const bool visible = block >= 0 && block < target.num_blocks && block * problem.block_size <= target.limit;
      if (!visible) return -1;
    } else if (block < 0) {
      return -1;
    }
    place = locate_block(problem, target.request, block);
    return place.page < 0 ? -1 : block;
  }

  /// Writes the entries, in the order of first selection, and what each row may see; returns the number of entries to
  /// all threads. `row_info` may be null. `table_memory` is 3 * slots words.
  __device__ std::int32_t build(const AttentionProblem& problem, std::int64_t row_begin, int num_rows,
                                std::int64_t list, std::uint32_t* table_memory, std::uint32_t slots,
                                DeviceRouteEntry* entries, DeviceRow* row_info) {
    const int thread = static_cast<int>(threadIdx.x);
    RouteTable table(table_memory, slots);
    for (std::uint32_t i = thread; i < slots; i += kThreads) {
      table.keys[i] = RouteTable::free_key;
      table.members[i] = 0;
      table.first[i] = 0xFFFFFFFFu;
    }
    if (thread < num_rows) {
      const RowTarget target = row_target(problem, row_begin + thread);
      rows[thread] = {target.request,
                      static_cast<std::int32_t>(target.limit),
                      static_cast<std::int32_t>(target.num_blocks),
                      static_cast<std::int32_t>(target.num_ids),
                      static_cast<std::int32_t>(target.tail_block),
                      0};
      if (row_info != nullptr) row_info[thread] = {target.request, static_cast<std::int32_t>(target.limit)};
    }
    __syncthreads();
    if (thread < num_rows) {
      int first = 0;
      while (rows[first].request != rows[thread].request) ++first;
      rows[thread].request_row = static_cast<std::uint32_t>(first);
    }
    __syncthreads();

    const auto num_selections = static_cast<std::uint32_t>(num_rows * (problem.topk + 1));
    for (std::uint32_t index = thread; index < num_selections; index += kThreads) {
      int row = 0;
      BlockLocation place;
      const std::int32_t block = selected_block(problem, row_begin, list, index, row, place);
      if (block >= 0) table.insert(RouteTable::key_of(block, rows[row].request_row), 1u << row, index);
    }
    __syncthreads();

    // Each block's first selection writes its entry: the order does not depend on how threads raced.
    std::int32_t written = 0;
    for (std::uint32_t base = 0; base < num_selections; base += kThreads) {
      const std::uint32_t index = base + thread;
      DeviceRouteEntry entry;
      bool is_first = false;
      if (index < num_selections) {
        int row = 0;
        BlockLocation place;
        const std::int32_t block = selected_block(problem, row_begin, list, index, row, place);
        if (block >= 0) {
          const std::uint32_t slot = table.find(RouteTable::key_of(block, rows[row].request_row));
          is_first = table.first[slot] == index;
          entry = {place.page, place.slot, block, table.members[slot]};
        }
      }
      std::int32_t at = 0;
      std::int32_t count = 0;
      Scan(scan).ExclusiveSum(is_first ? 1 : 0, at, count);
      if (is_first) entries[written + at] = entry;
      written += count;
      __syncthreads();
    }
    return written;
  }
};

}  // namespace kvsieve::cuda
