// SPDX-License-Identifier: Apache-2.0
//
// route, on the device: the same unions and memberships as route_builder.hpp, one list for each tile and selection
// list, in workspace memory. Tiles are windows of consecutive rows; where a window spans requests, the membership bits
// keep them apart, since an entry belongs to one request.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace kvsieve::cuda {

/// One selected block of a tile.
struct alignas(16) DeviceRouteEntry {
  std::int32_t page = -1;
  std::int32_t slot = 0;      ///< of the block's first token in the page
  std::int32_t block = 0;     ///< its first token's position over the block size
  std::uint32_t members = 0;  ///< bit t: row t of the tile selected it
};

/// What a row of the batch may see, for the attend kernel.
struct DeviceRow {
  std::int32_t request = -1;
  std::int32_t limit = -1;  ///< last position it attends to, -1 for none
};

/// How the entries of a tile are put in order for the attend kernel: chunks of small blocks that some warpgroup needs
/// no key of are then seldom.
struct RouteOrder {
  int warpgroups = 1;
  int warpgroup_rows = 32;  ///< warpgroup w has the tile's rows w * warpgroup_rows ...
};

/// Routes of a call. List l of tile t is entries[(t * num_lists + l) * capacity ...], counts[t * num_lists + l] long.
struct DeviceRoutes {
  DeviceRouteEntry* entries = nullptr;
  std::int32_t* counts = nullptr;
  DeviceRow* rows = nullptr;  ///< [total_q]
  std::int64_t tile_rows = 1;
  std::int64_t num_tiles = 0;
  std::int64_t num_lists = 1;         ///< 1 when all KV heads share a selection
  std::int64_t capacity = 0;          ///< entries of a list at most: tile_rows * (topk + 1)
  std::uint32_t blocks_per_page = 1;  ///< of a paged cache
  /// Blocks that a request can have, when a table with a word for each is to find the union; 0: a hash table.
  std::int32_t dense_blocks = 0;
  RouteOrder order;  ///< of dense tables; hashed entries come in the order of first selection
};

/// Hash tables with at most this many slots live in shared memory, larger ones in the workspace.
inline constexpr std::int64_t max_shared_slots = 8192;
/// Slots of the hash table for lists of at most `capacity` entries: a power of two, at most 70% full.
std::int64_t route_table_slots(std::int64_t capacity);
/// Bytes of workspace for the hash tables of `num_routes` lists; 0 when they fit into shared memory.
std::size_t route_table_bytes(std::int64_t capacity, std::int64_t num_routes);

/// Words of a dense table at most.
inline constexpr std::int64_t max_dense_blocks = 3 * max_shared_slots;

/// Enqueues the building of all routes. `tables` is route_table_bytes() of memory.
void build_routes(const AttentionProblem& problem, const DeviceRoutes& routes, void* tables, int device,
                  cudaStream_t stream);

/// Number of out-of-range index entries of a call (CallOptions::check_indices). Waits for the stream. `counter` is 8
/// bytes of device memory.
std::int64_t count_bad_indices(const AttentionProblem& problem, std::int64_t* counter, cudaStream_t stream);

}  // namespace kvsieve::cuda
