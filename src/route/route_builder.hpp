// SPDX-License-Identifier: Apache-2.0
//
// route: turns the block ids that the rows of a tile selected into one list of blocks, each with its place in the cache
// and the set of rows that want it. Neighbouring tokens select mostly the same blocks, so a tile loads each block once;
// the membership bits keep every row's own selection exact. MSA and QSA differ only in the row targets (row_map.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "route/row_map.hpp"

namespace kvsieve {

/// One selected block of a tile.
struct RouteEntry {
  std::int32_t page = 0;      ///< physical page of the block's first token
  std::int32_t slot = 0;      ///< its token slot within that page
  std::int32_t block = 0;     ///< logical block of the request: its keys are at positions block * block_size + i
  std::uint32_t members = 0;  ///< bit t: row t of the tile selected it
};

/// Rows of a tile at most: one membership bit each.
inline constexpr std::int64_t max_tile_rows = 32;

/// Neighbouring rows of one request, and the blocks that they need between them.
struct Route {
  std::int64_t row_begin = 0;
  std::int64_t num_rows = 0;
  const RouteEntry* entries = nullptr;
  std::int64_t num_entries = 0;
  std::int64_t limits[max_tile_rows];  ///< per row: last position it attends to; -1 for none
};

/// Builds routes in memory that the caller provides; one builder a thread.
class RouteBuilder {
 public:
  /// Bytes of memory for routes of at most `max_entries` blocks: tile rows times (topk + 1), the one for the tail
  /// block. `memory` must be aligned to 64 bytes.
  static std::size_t memory_bytes(std::int64_t max_entries);
  RouteBuilder(void* memory, std::int64_t tile_rows, std::int64_t max_entries);

  /// Route of the rows from `row_begin` that belong to one request, at most up to `row_end` and the builder's tile
  /// rows, for one KV head. At least one row: a row that has no key stands alone with no entries. Entries are ordered
  /// by membership, then by block, so that blocks that the same rows want are neighbours. Valid until the next build.
  Route build(const AttentionProblem& problem, std::int64_t kv_head, std::int64_t row_begin, std::int64_t row_end);

 private:
  void add(const AttentionProblem& problem, std::int32_t request, std::int64_t block, std::uint32_t member);

  std::int64_t tile_rows_;
  RouteEntry* entries_;
  std::int64_t num_entries_ = 0;
  std::int32_t* table_;  ///< open-addressing hash of block -> index into entries_ plus 1; 0 is free
  std::uint32_t table_mask_;
  int table_shift_;
};

}  // namespace kvsieve
