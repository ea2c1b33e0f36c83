// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cub/block/block_scan.cuh>

#include "cuda/check.hpp"
#include "route/route_cuda.hpp"
#include "route/row_map.hpp"

namespace kvsieve::cuda {
namespace {

constexpr int num_threads = 256;
constexpr int tile_row_bits = 5;  // a key is (first row of its request's run in the tile, block)
constexpr std::uint32_t free_key = 0xFFFFFFFFu;

/// Open-addressing hash table of the blocks that a tile selects.
struct Table {
  std::uint32_t* keys;
  std::uint32_t* members;
  std::uint32_t* first;  ///< smallest index of a selection that names the block: gives entries a fixed order
  std::uint32_t mask;

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

/// The rows of a tile as the kernel needs them.
struct TileRows {
  RowTarget targets[32];
  std::uint32_t request_key[32];  ///< index of the tile's first row with the same request
};

/// Block that selection `index` of the tile names, or -1: selections of a row are its ids, then its tail block.
__device__ std::int64_t selected_block(const AttentionProblem& problem, const TileRows& rows, std::int64_t row_begin,
                                       std::int64_t list, std::int64_t index, int& row) {
  const std::int64_t per_row = problem.topk + 1;
  row = static_cast<int>(index / per_row);
  const std::int64_t i = index % per_row;
  const RowTarget& target = rows.targets[row];
  if (target.empty()) return -1;
  std::int64_t block = target.tail_block;
  if (i < problem.topk) {
    if (i >= target.num_ids) return -1;
    block = problem.ids[(row_begin + row) * problem.ids_stride_row + list * problem.ids_stride_head + i];
    if (!is_visible_block(problem, target, block)) return -1;
  } else if (block < 0) {
    return -1;
  }
  return locate_block(problem, target.request, block).page < 0 ? -1 : block;
}

__global__ void __launch_bounds__(num_threads)
    build_routes_kernel(const __grid_constant__ AttentionProblem problem, const __grid_constant__ DeviceRoutes routes,
                        std::uint32_t* tables, std::uint32_t slots) {
  extern __shared__ std::uint32_t shared_table[];
  // As bytes: the defaults of RowTarget's members may not run here.
  alignas(TileRows) __shared__ unsigned char rows_memory[sizeof(TileRows)];
  TileRows& rows = *reinterpret_cast<TileRows*>(rows_memory);
  using Scan = cub::BlockScan<std::int32_t, num_threads>;
  __shared__ typename Scan::TempStorage scan_storage;

  const std::int64_t route = blockIdx.x;
  const std::int64_t tile = route / routes.num_lists;
  const std::int64_t list = route % routes.num_lists;
  const std::int64_t row_begin = tile * routes.tile_rows;
  const int num_rows = static_cast<int>(smaller(routes.tile_rows, problem.total_q - row_begin));
  const int thread = static_cast<int>(threadIdx.x);

  std::uint32_t* memory = tables != nullptr ? tables + route * 3 * slots : shared_table;
  Table table{memory, memory + slots, memory + 2 * slots, slots - 1};
  for (std::uint32_t i = thread; i < slots; i += num_threads) {
    table.keys[i] = free_key;
    table.members[i] = 0;
    table.first[i] = 0xFFFFFFFFu;
  }
  if (thread < num_rows) {
    const RowTarget target = row_target(problem, row_begin + thread);
    rows.targets[thread] = target;
    if (list == 0) {
      routes.rows[row_begin + thread] = {target.request, static_cast<std::int32_t>(target.limit)};
    }
  }
  __syncthreads();
  if (thread < num_rows) {
    int first = 0;
    while (rows.targets[first].request != rows.targets[thread].request) ++first;
    rows.request_key[thread] = static_cast<std::uint32_t>(first);
  }
  __syncthreads();

  const std::int64_t num_selections = num_rows * (problem.topk + 1);
  const auto key_of = [&](std::int64_t block, int row) {
    return static_cast<std::uint32_t>(block) << tile_row_bits | rows.request_key[row];
  };
  for (std::int64_t index = thread; index < num_selections; index += num_threads) {
    int row = 0;
    const std::int64_t block = selected_block(problem, rows, row_begin, list, index, row);
    if (block >= 0) table.insert(key_of(block, row), 1u << row, static_cast<std::uint32_t>(index));
  }
  __syncthreads();

  // Each block's first selection writes its entry: the order does not depend on how threads raced.
  DeviceRouteEntry* entries = routes.entries + route * routes.capacity;
  std::int32_t written = 0;
  for (std::int64_t base = 0; base < num_selections; base += num_threads) {
    const std::int64_t index = base + thread;
    DeviceRouteEntry entry;
    bool is_first = false;
    if (index < num_selections) {
      int row = 0;
      const std::int64_t block = selected_block(problem, rows, row_begin, list, index, row);
      if (block >= 0) {
        const std::uint32_t slot = table.find(key_of(block, row));
        is_first = table.first[slot] == static_cast<std::uint32_t>(index);
        entry = {static_cast<std::int32_t>(block), table.members[slot]};
      }
    }
    std::int32_t place = 0;
    std::int32_t count = 0;
    Scan(scan_storage).ExclusiveSum(is_first ? 1 : 0, place, count);
    if (is_first) entries[written + place] = entry;
    written += count;
    __syncthreads();
  }
  if (thread == 0) routes.counts[route] = written;
}

/// One thread a row, and a request.
__global__ void count_bad_indices_kernel(const __grid_constant__ AttentionProblem problem,
                                         unsigned long long* counter) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::int64_t bad = 0;
  if (i < problem.total_q) bad += bad_indices_of_row(problem, i);
  if (i < problem.num_requests) bad += bad_indices_of_request(problem, i);
  if (bad != 0) atomicAdd(counter, static_cast<unsigned long long>(bad));
}

}  // namespace

std::int64_t route_table_slots(std::int64_t capacity) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(capacity * 10 / 7 + 16)));
}

std::size_t route_table_bytes(std::int64_t capacity, std::int64_t num_routes) {
  const std::int64_t slots = route_table_slots(capacity);
  if (slots <= max_shared_slots) return 0;
  return static_cast<std::size_t>(slots * num_routes) * 3 * sizeof(std::uint32_t);
}

void build_routes(const AttentionProblem& problem, const DeviceRoutes& routes, void* tables, cudaStream_t stream) {
  const std::int64_t slots = route_table_slots(routes.capacity);
  const bool in_shared = slots <= max_shared_slots;
  const std::size_t shared_bytes = in_shared ? static_cast<std::size_t>(slots) * 3 * sizeof(std::uint32_t) : 0;
  if (shared_bytes > 32 * 1024) {  // with the static part past the 48 KiB that need no asking
    check(cudaFuncSetAttribute(build_routes_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  }
  const auto grid = static_cast<unsigned>(routes.num_tiles * routes.num_lists);
  build_routes_kernel<<<grid, num_threads, shared_bytes, stream>>>(
      problem, routes, in_shared ? nullptr : static_cast<std::uint32_t*>(tables), static_cast<std::uint32_t>(slots));
  check_launch("build_routes_kernel");
}

std::int64_t count_bad_indices(const AttentionProblem& problem, std::int64_t* counter, cudaStream_t stream) {
  const std::int64_t items = larger(problem.total_q, problem.num_requests);
  std::int64_t bad = 0;
  if (items == 0) return bad;
  check(cudaMemsetAsync(counter, 0, sizeof(bad), stream), "cudaMemsetAsync");
  const auto grid = static_cast<unsigned>((items + num_threads - 1) / num_threads);
  count_bad_indices_kernel<<<grid, num_threads, 0, stream>>>(problem, reinterpret_cast<unsigned long long*>(counter));
  check_launch("count_bad_indices_kernel");
  check(cudaMemcpyAsync(&bad, counter, sizeof(bad), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return bad;
}

}  // namespace kvsieve::cuda
