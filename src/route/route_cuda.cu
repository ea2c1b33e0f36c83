// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "cuda/barrier.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "route/route_cuda.hpp"
#include "route/route_device.cuh"
#include "route/row_map.hpp"

namespace kvsieve::cuda {
namespace {

constexpr int num_threads = 256;

/// One thread block a tile and list.
__global__ void __launch_bounds__(num_threads)
    build_routes_kernel(const __grid_constant__ AttentionProblem problem, const __grid_constant__ DeviceRoutes routes,
                        std::uint32_t* tables, std::uint32_t slots) {
  launch_next_kernel();
  auto* const shared_table = reinterpret_cast<std::uint32_t*>(dynamic_shared_memory<16>());
  using Route = TileRoute<num_threads>;
  alignas(Route) __shared__ unsigned char memory[sizeof(Route)];  // as bytes: member defaults may not run here
  const std::int64_t route = blockIdx.x;
  const std::int64_t tile = route / routes.num_lists;
  const std::int64_t list = route % routes.num_lists;
  const std::int64_t row_begin = tile * routes.tile_rows;
  const int num_rows = static_cast<int>(smaller(routes.tile_rows, problem.total_q - row_begin));
  const std::int32_t count = reinterpret_cast<Route*>(memory)->build(
      problem, routes, row_begin, num_rows, list, tables != nullptr ? tables + route * 3 * slots : shared_table, slots,
      routes.entries + route * routes.capacity, list == 0 ? routes.rows + row_begin : nullptr);
  if (threadIdx.x == 0) routes.counts[route] = count;
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

void build_routes(const AttentionProblem& problem, const DeviceRoutes& routes, void* tables, int device,
                  cudaStream_t stream) {
  const std::int64_t slots = route_table_slots(routes.capacity);
  const bool dense = routes.dense_blocks > 0;
  const bool in_shared = dense || slots <= max_shared_slots;
  const std::int64_t words = dense ? routes.dense_blocks : in_shared ? 3 * slots : 0;
  const std::size_t shared_bytes = static_cast<std::size_t>(words) * sizeof(std::uint32_t);
  LaunchShape shape;
  shape.blocks = routes.num_tiles * routes.num_lists;
  shape.threads = num_threads;
  shape.shared_bytes = shared_bytes;
  shape.device = device;
  launch<build_routes_kernel>("build_routes_kernel", shape, max_shared_slots * 3 * sizeof(std::uint32_t), stream,
                              problem, routes, in_shared ? nullptr : static_cast<std::uint32_t*>(tables),
                              static_cast<std::uint32_t>(slots));
}

}  // namespace kvsieve::cuda
