// SPDX-License-Identifier: Apache-2.0
//
// The route of one tile, built by one thread block: the union of what its rows selected, each block with its members.
#pragma once

#include <cub/block/block_scan.cuh>

#include "cuda/ptx.cuh"
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

/// Class of an entry in a RouteOrder, 0..3. One warpgroup: chosen by all rows, the rest. Two: by all rows, by rows of
/// both, of the first, of the second. Three: by rows of all three; without the third; of those left, without the
/// second; without the first.
__device__ inline int class_of(const RouteOrder& order, std::uint32_t members, std::uint32_t all) {
  if (order.warpgroups == 1) return members == all ? 0 : 1;
  const std::uint32_t rows = (1u << order.warpgroup_rows) - 1;
  const bool first = (members & rows) != 0;
  const bool second = (members >> order.warpgroup_rows & rows) != 0;
  if (order.warpgroups == 2) return !second ? 2 : !first ? 3 : members == all ? 0 : 1;
  const bool third = (members >> (2 * order.warpgroup_rows) & rows) != 0;
  return !third ? 1 : !second ? 2 : !first ? 3 : 0;
}

/// locate_block() in 32 bits: what the CUDA paths take has fewer than 2^31 tokens a request.
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

/// Builds the route of a tile of at most 32 rows from `row_begin`. All kThreads threads of the block take part; its
/// shared memory holds this object.
template <int kThreads>
struct TileRoute {
  using Scan = cub::BlockScan<std::int32_t, kThreads>;
  using ClassScan = cub::BlockScan<unsigned long long, kThreads>;

  struct Row {
    std::int32_t request, limit, num_blocks, num_ids, tail_block;
    std::uint32_t request_row;  ///< the tile's first row with the same request
  };
  Row rows[32];
  union {
    typename Scan::TempStorage scan;
    typename ClassScan::TempStorage class_scan;
  };

  /// What each row may see; to `row_info` too, unless null.
  __device__ void find_rows(const AttentionProblem& problem, std::int64_t row_begin, int num_rows,
                            DeviceRow* row_info) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < num_rows) {
      const RowTarget target = row_target(problem, row_begin + thread);
      // 64-bit positions may lie far past what any page table covers.
      constexpr std::int64_t last_position = 0x7FFFFFFE;
      constexpr std::int64_t last_block = (1 << 27) - 3;  // fits a key of the hash table
      const auto limit = static_cast<std::int32_t>(smaller(target.limit, last_position));
      rows[thread] = {target.request,
                      limit,
                      static_cast<std::int32_t>(smaller(target.num_blocks, last_block + 1)),
                      static_cast<std::int32_t>(target.num_ids),
                      target.tail_block <= last_block ? static_cast<std::int32_t>(target.tail_block) : -1,
                      0};
      if (row_info != nullptr) row_info[thread] = {target.request, limit};
    }
    __syncthreads();
    if (thread < num_rows) {
      int first = 0;
      while (rows[first].request != rows[thread].request) ++first;
      rows[thread].request_row = static_cast<std::uint32_t>(first);
    }
    __syncthreads();
  }

  /// Block that selection `index` names, or -1: selections of a row are its ids, then its tail block. Sets the row.
  __device__ std::int32_t selected_block(const AttentionProblem& problem, std::int64_t row_begin, std::int64_t list,
                                         std::uint32_t index, int& row) const {
    const auto per_row = static_cast<std::uint32_t>(problem.topk + 1);
    row = static_cast<int>(index / per_row);
    const auto i = static_cast<std::int32_t>(index % per_row);
    const Row& target = rows[row];
    if (target.limit < 0) return -1;
    if (i == problem.topk) return target.tail_block;
    if (i >= target.num_ids) return -1;
    const std::int32_t block =
        problem.ids[(row_begin + row) * problem.ids_stride_row + list * problem.ids_stride_head + i];
    const bool visible = block >= 0 && block < target.num_blocks && block * problem.block_size <= target.limit;
    return visible ? block : -1;
  }

  /// Writes the entries and returns their number to all threads. `table_memory` is 3 * slots words. The order is that
  /// of first selection.
  __device__ std::int32_t build_hashed(const AttentionProblem& problem, const DeviceRoutes& routes,
                                       std::int64_t row_begin, int num_rows, std::int64_t list,
                                       std::uint32_t* table_memory, std::uint32_t slots, DeviceRouteEntry* entries) {
    const int thread = static_cast<int>(threadIdx.x);
    RouteTable table(table_memory, slots);
    for (std::uint32_t i = thread; i < slots; i += kThreads) {
      table.keys[i] = RouteTable::free_key;
      table.members[i] = 0;
      table.first[i] = 0xFFFFFFFFu;
    }
    __syncthreads();

    const auto num_selections = static_cast<std::uint32_t>(num_rows * (problem.topk + 1));
#pragma unroll 1
    for (std::uint32_t index = thread; index < num_selections; index += kThreads) {
      int row = 0;
      const std::int32_t block = selected_block(problem, row_begin, list, index, row);
      if (block < 0 || locate_block(problem, routes, rows[row].request, block).page < 0) continue;
      table.insert(RouteTable::key_of(block, rows[row].request_row), 1u << row, index);
    }
    __syncthreads();

    // Each block's first selection writes its entry: the order does not depend on how threads raced.
    std::int32_t written = 0;
#pragma unroll 1
    for (std::uint32_t base = 0; base < num_selections; base += kThreads) {
      const std::uint32_t index = base + thread;
      DeviceRouteEntry entry;
      bool is_first = false;
      if (index < num_selections) {
        int row = 0;
        const std::int32_t block = selected_block(problem, row_begin, list, index, row);
        BlockLocation place;
        if (block >= 0) place = locate_block(problem, routes, rows[row].request, block);
        if (place.page >= 0) {
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

  /// Walks through the selections of a tile by segments of 32, a warp a segment, without dividing for each.
  struct Segments {
    int row, column;            ///< of the warp's current segment
    int per_row;                ///< segments of a row
    int row_step, column_step;  ///< of the warp's next one
    __device__ explicit Segments(const AttentionProblem& problem) : per_row(static_cast<int>(problem.topk) / 32 + 1) {
      constexpr int warps = kThreads / 32;
      const int warp = static_cast<int>(threadIdx.x) / 32;
      row_step = warps / per_row;
      column_step = warps - row_step * per_row;
      row = warp / per_row;
      column = warp - row * per_row;
    }
    __device__ void next() {
      row += row_step;
      column += column_step;
      if (column >= per_row) {
        column -= per_row;
        ++row;
      }
    }
    __device__ int index() const { return column * 32 + static_cast<int>(threadIdx.x) % 32; }
  };

  /// Segments whose ids a warp loads together, so that their latencies overlap.
  static constexpr int batch = 8;

  __device__ static void load_ids(const AttentionProblem& problem, std::int64_t row_begin, int num_rows,
                                  std::int64_t list, Segments at, std::int32_t (&ids)[batch]) {
    const std::int32_t* const from = problem.ids + row_begin * problem.ids_stride_row + list * problem.ids_stride_head;
#pragma unroll
    for (int u = 0; u < batch; ++u, at.next()) {
      ids[u] = -1;
      if (at.row < num_rows && at.index() < problem.topk) ids[u] = from[at.row * problem.ids_stride_row + at.index()];
    }
  }

  /// Marks in `words` the blocks below num_blocks that the rows of `mask` selected.
  __device__ void mark(const AttentionProblem& problem, int num_rows, std::uint32_t mask, Segments at,
                       const std::int32_t (&ids)[batch], std::uint32_t* words, std::int32_t num_blocks) const {
#pragma unroll
    for (int u = 0; u < batch; ++u, at.next()) {
      if (at.row >= num_rows) break;
      const Row& target = rows[at.row];
      if ((mask >> at.row & 1) == 0 || target.limit < 0) continue;
      const int i = at.index();
      std::int32_t block = -1;
      if (i < target.num_ids && ids[u] < target.num_blocks && ids[u] * problem.block_size <= target.limit) {
        block = ids[u];
      }
      if (i == problem.topk) block = target.tail_block;
      if (block >= 0 && block < num_blocks) atomicOr(words + block, 1u << at.row);
    }
  }

  /// As build_hashed, with a word for each of the routes.dense_blocks blocks that a request can have, in `words`; for
  /// each request of the tile in turn. The order is by RouteOrder's classes, then by block. An entry whose page is out
  /// of range stays, without members. Finds the rows too.
  __device__ std::int32_t build_dense(const AttentionProblem& problem, const DeviceRoutes& routes,
                                      std::int64_t row_begin, int num_rows, std::int64_t list, std::uint32_t* words,
                                      DeviceRouteEntry* entries, DeviceRow* row_info) {
    const int thread = static_cast<int>(threadIdx.x);
    std::int32_t ids[batch];
    load_ids(problem, row_begin, num_rows, list, Segments(problem), ids);  // before what says which of them count
    bool ids_are_first = true;
    find_rows(problem, row_begin, num_rows, row_info);
    std::int32_t written = 0;
#pragma unroll 1
    for (int first = 0; first < num_rows; ++first) {
      const Row& row_of_request = rows[first];
      if (row_of_request.request < 0 || row_of_request.request_row != static_cast<std::uint32_t>(first)) continue;
      std::uint32_t all = 0;
      std::int32_t num_blocks = 0;  // that some row sees
#pragma unroll 1
      for (int row = first; row < num_rows; ++row) {
        if (rows[row].request_row != static_cast<std::uint32_t>(first)) continue;
        all |= 1u << row;
        num_blocks = max(num_blocks, max(rows[row].num_blocks, rows[row].tail_block + 1));
      }
      num_blocks = min(num_blocks, routes.dense_blocks);
      if (problem.page_table != nullptr) touch_page_table(problem, routes, row_of_request.request, num_blocks);
      for (std::int32_t i = thread; i < num_blocks; i += kThreads) words[i] = 0;
      __syncthreads();
#pragma unroll 1
      for (Segments at(problem); __any_sync(0xFFFFFFFFu, at.row < num_rows);) {
        if (!ids_are_first) load_ids(problem, row_begin, num_rows, list, at, ids);
        mark(problem, num_rows, all, at, ids, words, num_blocks);
        ids_are_first = false;
        for (int u = 0; u < batch; ++u) at.next();
      }
      __syncthreads();
      written = list_marked(routes.order, all, words, num_blocks, entries, written);
    }
    __syncthreads();
#pragma unroll 1
    for (std::int32_t i = thread; i < written; i += kThreads) {
      DeviceRouteEntry entry = entries[i];
      const int member = __ffs(static_cast<int>(entry.members)) - 1;
      const BlockLocation place = locate_block(problem, routes, rows[member].request, entry.block);
      if (place.page < 0) entry.members = 0;
      entry.page = place.page;
      entry.slot = place.slot;
      entries[i] = entry;
    }
    __syncthreads();
    return written;
  }

  /// Appends an entry for each block that has a mark to `entries`, and returns their number.
  __device__ std::int32_t list_marked(const RouteOrder& order, std::uint32_t all, const std::uint32_t* words,
                                      std::int32_t num_blocks, DeviceRouteEntry* entries, std::int32_t written) {
    const std::int32_t share = (num_blocks + kThreads - 1) / kThreads | 1;  // odd: threads meet different banks
    const std::int32_t begin = min(num_blocks, static_cast<std::int32_t>(threadIdx.x) * share);
    const std::int32_t end = min(num_blocks, begin + share);
    unsigned long long counts = 0;  // 16 bits a class
#pragma unroll 4
    for (std::int32_t block = begin; block < end; ++block) {
      const std::uint32_t members = words[block];
      if (members != 0) counts += 1ull << 16 * class_of(order, members, all);
    }
    unsigned long long before = 0;
    unsigned long long total = 0;
    ClassScan(class_scan).ExclusiveSum(counts, before, total);
    std::int32_t at[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      at[c] = written + static_cast<std::int32_t>(before >> 16 * c & 0xFFFF);
      written += static_cast<std::int32_t>(total >> 16 * c & 0xFFFF);
    }
#pragma unroll 4
    for (std::int32_t block = begin; block < end; ++block) {
      const std::uint32_t members = words[block];
      if (members == 0) continue;
      const int c = class_of(order, members, all);
      const std::int32_t to = c == 0 ? at[0]++ : c == 1 ? at[1]++ : c == 2 ? at[2]++ : at[3]++;
      entries[to] = {-1, 0, block, members};
    }
    __syncthreads();
    return written;
  }

  /// Brings the page table of a request near: all at once rather than block after block.
  __device__ static void touch_page_table(const AttentionProblem& problem, const DeviceRoutes& routes,
                                          std::int32_t request, std::int32_t num_blocks) {
    const std::int32_t* const table = problem.page_table + request * problem.page_table_stride;
    const auto pages = static_cast<std::uint32_t>(problem.max_pages);
    const std::uint32_t needed = static_cast<std::uint32_t>(num_blocks) / routes.blocks_per_page + 1;
    for (std::uint32_t i = threadIdx.x * 8; i < min(pages, needed); i += kThreads * 8) {  // a sector each
      prefetch_l1(table + i);
    }
  }

  /// The route of a tile: what each row may see, then the entries. `table` is 3 * slots words, or num_blocks where
  /// routes.dense_blocks says so.
  __device__ std::int32_t build(const AttentionProblem& problem, const DeviceRoutes& routes, std::int64_t row_begin,
                                int num_rows, std::int64_t list, std::uint32_t* table, std::uint32_t slots,
                                DeviceRouteEntry* entries, DeviceRow* row_info) {
    if (routes.dense_blocks > 0) {
      return build_dense(problem, routes, row_begin, num_rows, list, table, entries, row_info);
    }
    find_rows(problem, row_begin, num_rows, row_info);
    return build_hashed(problem, routes, row_begin, num_rows, list, table, slots, entries);
  }
};

}  // namespace kvsieve::cuda
