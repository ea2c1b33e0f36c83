// SPDX-License-Identifier: Apache-2.0
//
// combine, for works whose chunks several thread blocks of the Hopper attend kernel have shared: merges their states in
// the order of the thread blocks, which is that of the chunks.
#include "attend/cuda_sm90/kernel.hpp"
#include "combine/merge_states.cuh"
#include "cuda/barrier.cuh"
#include "cuda/launch.cuh"

namespace kvsieve::cuda::sm90 {
namespace {

constexpr int threads = 128;
constexpr int parts = 8;  ///< thread blocks for the rows of a work
constexpr int max_blocks = 512;

/// Thread block `block * parts + part` merges a part of the rows of the work that thread block `block` began and did
/// not end.
__global__ void __launch_bounds__(threads) combine_shares_kernel(const __grid_constant__ Parameters p, int num_blocks) {
  wait_for_previous_kernel();
  __shared__ std::int32_t states[max_blocks];
  __shared__ int num_states;
  const int block = static_cast<int>(blockIdx.x) / parts;
  const int part = static_cast<int>(blockIdx.x) % parts;
  const std::int32_t work = p.states.works[2 * block + 1];
  if (work == no_state) return;
  if (threadIdx.x == 0) {
    int count = 0;
    states[count++] = 2 * block + 1;
    for (int next = block + 1; next < num_blocks; ++next) {
      const std::int32_t continued = p.states.works[2 * next];
      if (continued == empty_share) continue;
      if (continued != work) break;
      states[count++] = 2 * next;
    }
    num_states = count;
  }
  __syncthreads();

  const DeviceRoutes& routes = p.attend.routes;
  const std::int64_t kv_head = work / routes.num_tiles;
  const std::int64_t row_begin = (routes.num_tiles - 1 - work % routes.num_tiles) * routes.tile_rows;
  const auto num_rows = static_cast<int>(min(routes.tile_rows, p.attend.problem.total_q - row_begin));
  const auto dim = static_cast<int>(p.attend.problem.head_dim);
  const int quads = dim / 4;
  const HeadGroup& group = p.schedule.group;
  for (int i = part * threads + static_cast<int>(threadIdx.x); i < num_rows * group.size * quads;
       i += parts * threads) {
    const int column = i % quads * 4;
    const TokenHead at(group, i / quads);
    const int warpgroup = at.token / p.schedule.warpgroup_tokens;
    const std::int64_t row =
        warpgroup * warpgroup_rows + (at.token - warpgroup * p.schedule.warpgroup_tokens) * group.size + at.head;
    const QuadState merged = merge_quad<2>(
        num_states, [&](int s) { return p.states.stats[states[s] * std::int64_t{tile_rows} + row]; },
        [&](int s) {
          return *reinterpret_cast<const float4*>(p.states.out + (states[s] * std::int64_t{tile_rows} + row) * dim +
                                                  column);
        });
    store_quad(p.attend.problem, row_begin + at.token, kv_head * group.size + at.head, column, merged);
  }
}

}  // namespace

void combine_shares(const Parameters& parameters, int num_blocks, cudaStream_t stream) {
  LaunchShape shape;
  shape.blocks = std::int64_t{num_blocks} * parts;
  shape.threads = threads;
  shape.device = parameters.attend.device;
  shape.overlaps_previous = true;
  launch<combine_shares_kernel>("combine_shares_kernel", shape, 0, stream, parameters, num_blocks);
}

}  // namespace kvsieve::cuda::sm90
