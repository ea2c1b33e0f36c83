// SPDX-License-Identifier: Apache-2.0
//
// The union of a tile of few rows, built by the thread block that attends to it: as route_device.cuh, for short routes
// and with little code, since it runs once and cold. The selections are staged in shared memory; a table has as many
// bits a block as the tile has rows (rounded up to a power of two).
#pragma once

#include <cub/block/block_scan.cuh>

#include "cuda/barrier.cuh"
#include "cuda/ptx.cuh"
#include "route/tile_rows.cuh"

namespace kvsieve::cuda {

/// A tile of at most 32 rows from `row_begin`. All kThreads threads of the block take part; its shared memory holds
/// this object.
template <int kThreads>
struct NarrowRoute {
  using Scan = cub::BlockScan<std::int32_t, kThreads>;

  TileRow rows[32];
  typename Scan::TempStorage scan;

  /// Writes the entries, to be located, and returns their number to all threads. `words`: narrow_route_words() of
  /// memory. Entries are in the order of the requests' first rows, then of the blocks.
  __device__ std::int32_t build(const AttentionProblem& problem, const DeviceRoutes& routes, std::int64_t row_begin,
                                int num_rows, std::int64_t list, std::uint32_t* words, DeviceRouteEntry* entries) {
    const int thread = static_cast<int>(threadIdx.x);
    const int bits_shift = narrow_bits_shift(static_cast<int>(routes.tile_rows));
    const int table_words = (routes.dense_blocks >> (5 - bits_shift)) + 1;
    auto* const ids = reinterpret_cast<std::int32_t*>(words + table_words);
    const auto topk = static_cast<int>(problem.topk);
    stage_ids(problem, row_begin, num_rows, list, ids);
    if (thread < num_rows) rows[thread] = tile_row(problem, row_begin + thread);
#pragma unroll 1
    for (int i = thread; i < table_words; i += kThreads) words[i] = 0;
    copy_async_wait_all();
    __syncthreads();

    std::int32_t written = 0;
#pragma unroll 1
    for (int first = 0; first < num_rows; ++first) {
      const std::int32_t request = rows[first].request;
      if (request < 0 || !is_first(first)) continue;
      std::int32_t num_blocks = 0;  // that some row sees
#pragma unroll 1
      for (int row = first; row < num_rows; ++row) {
        if (rows[row].request == request)
          num_blocks = max(num_blocks, max(rows[row].num_blocks, rows[row].tail_block + 1));
      }
      num_blocks = min(num_blocks, routes.dense_blocks);
      if (problem.page_table != nullptr) touch_page_table<kThreads>(problem, routes, request, num_blocks);
#pragma unroll 1
      for (int row = first; row < num_rows; ++row) {
        if (rows[row].request == request) mark(problem, row, ids + row * topk, words, bits_shift, num_blocks);
      }
      __syncthreads();
      written = list_marked(words, bits_shift, num_blocks, entries, written);
      __syncthreads();
    }
    return written;
  }

 private:
  /// Starts copying the selections of all rows.
  __device__ static void stage_ids(const AttentionProblem& problem, std::int64_t row_begin, int num_rows,
                                   std::int64_t list, std::int32_t* ids) {
    const std::int32_t* from = problem.ids + row_begin * problem.ids_stride_row + list * problem.ids_stride_head;
    std::uint32_t to = shared_address(ids);
    const auto topk = static_cast<int>(problem.topk);
#pragma unroll 1
    for (int row = 0; row < num_rows; ++row) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < topk; i += kThreads) copy_async_4(to + i * 4, from + i);
      from += problem.ids_stride_row;
      to += topk * 4;
    }
  }

  __device__ bool is_first(int row) const {
    for (int earlier = 0; earlier < row; ++earlier) {
      if (rows[earlier].request == rows[row].request) return false;
    }
    return true;
  }

  /// Marks the blocks below num_blocks that a row selected.
  __device__ void mark(const AttentionProblem& problem, int row, const std::int32_t* ids, std::uint32_t* words,
                       int bits_shift, std::int32_t num_blocks) const {
    const TileRow target = rows[row];
    if (target.limit < 0) return;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i <= target.num_ids; i += kThreads) {
      std::int32_t block = target.tail_block;
      if (i < target.num_ids) {
        block = ids[i];
        if (block >= target.num_blocks || block * problem.block_size > target.limit) block = -1;
      }
      if (block < 0 || block >= num_blocks) continue;
      const int bit = ((block << bits_shift) & 31) + row;
      atomicOr(words + (block >> (5 - bits_shift)), 1u << bit);
    }
  }

  /// Appends an entry for each block that has a mark, in their order, and clears the table.
  __device__ std::int32_t list_marked(std::uint32_t* words, int bits_shift, std::int32_t num_blocks,
                                      DeviceRouteEntry* entries, std::int32_t written) {
    const std::uint32_t field_mask = 0xFFFFFFFFu >> (32 - (1 << bits_shift));
    const int num_words = (num_blocks >> (5 - bits_shift)) + 1;
    const int share = (num_words + kThreads - 1) / kThreads;
    const int begin = min(num_words, static_cast<int>(threadIdx.x) * share);
    const int end = min(num_words, begin + share);
    // Takes the lowest field that has a mark out of a word.
    const auto take = [&](std::uint32_t& word, int& field) {
      field = (__ffs(static_cast<int>(word)) - 1) >> bits_shift;
      const std::uint32_t members = word >> (field << bits_shift) & field_mask;
      word &= ~(field_mask << (field << bits_shift));
      return members;
    };
    std::int32_t count = 0;
    int field = 0;
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
#pragma unroll 1
      for (std::uint32_t word = words[i]; word != 0; ++count) take(word, field);
    }
    std::int32_t before = 0;
    std::int32_t total = 0;
    Scan(scan).ExclusiveSum(count, before, total);
    std::int32_t at = written + before;
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
#pragma unroll 1
      for (std::uint32_t word = words[i]; word != 0; ++at) {
        const std::uint32_t members = take(word, field);
        entries[at] = {-1, 0, (i << (5 - bits_shift)) + field, members};
      }
      words[i] = 0;
    }
    return written + total;
  }
};

}  // namespace kvsieve::cuda
