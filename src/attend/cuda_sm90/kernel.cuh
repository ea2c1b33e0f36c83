// SPDX-License-Identifier: Apache-2.0
//
// Hopper attend kernel: wgmma consumers fed by a producer of asynchronous copies, compute capability 9.0a.
// docs/kernels/cuda_sm90.md draws the tile, the shared memory and the pipeline.
//
// A thread block works on tiles of neighbouring query rows. Each consumer warpgroup owns 64 (token, head) rows of the
// tile; one producer warpgroup gathers the keys that any row selected into a ring of slots (K and V alternate). The
// warpgroups share every load and skip chunks that none of their own rows selected. For few rows a cluster of thread
// blocks shares a tile's keys and merges the states through its shared memory.
#pragma once

#include "attend/cuda_sm90/consumer.cuh"
#include "attend/cuda_sm90/producer.cuh"
#include "attend/cuda_sm90/split_states.cuh"
#include "attend/cuda_sm90/traits.cuh"
#include "cuda/launch.cuh"

namespace kvsieve::cuda::sm90 {

/// Builds the route of this thread block's only tile in shared memory.
template <class Traits>
__device__ void build_route(const Parameters& p, unsigned char* shared) {
  const Work work(p, first_work(p), nullptr);
  auto* const route = reinterpret_cast<typename Traits::Route*>(shared + (Traits::route_at + 15) / 16 * 16);
  auto* const entries = reinterpret_cast<DeviceRouteEntry*>(shared + Traits::entries_at);
  auto* const rows = reinterpret_cast<DeviceRow*>(shared + Traits::rows_at);
  std::uint32_t slots = 64;  // more than the selections need, so that few probe twice
  while (slots < 2 * static_cast<std::uint32_t>(p.attend.routes.capacity) && slots < Traits::route_slots) slots *= 2;
  const std::int32_t count =
      route->build(p.attend.problem, p.attend.routes, work.row_begin, work.num_rows,
                   p.attend.routes.num_lists == 1 ? 0 : work.kv_head,
                   reinterpret_cast<std::uint32_t*>(shared + Traits::slots_at), slots, entries, rows);
  if (threadIdx.x == 0) *reinterpret_cast<std::int32_t*>(shared + Traits::count_at) = count;
}

template <class T, int kDim, bool kF8, int kWarpgroups>
__global__ void __launch_bounds__(Traits<T, kDim, kF8, kWarpgroups>::threads,
                                  Traits<T, kDim, kF8, kWarpgroups>::blocks_per_processor)
    attend_kernel(const __grid_constant__ Parameters parameters) {
  using Tr = Traits<T, kDim, kF8, kWarpgroups>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Barriers<Tr> barriers{shared_address(shared_memory + Tr::barriers_at)};
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  wait_for_previous_kernel();
  if (parameters.schedule.in_block_route) {
    build_route<Tr>(parameters, shared_memory);
    fence_async_proxy();  // the hash table was where the slots are
    __syncthreads();
  }
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == Tr::warpgroups) {
    if constexpr (Tr::shifts_registers) release_registers<Tr::producer_registers>();
    Producer<Tr>(parameters, shared_memory, barriers).run();
    if (parameters.schedule.splits > 1) SplitStates<Tr>::skip();
  } else {
    if constexpr (Tr::shifts_registers) claim_registers<Tr::consumer_registers>();
    Consumer<Tr>(parameters, shared_memory, barriers, warpgroup).run();
  }
}

template <class T, int kDim, bool kF8, int kWarpgroups>
void launch_as(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  using Tr = Traits<T, kDim, kF8, kWarpgroups>;
  const AttendParameters& a = parameters.attend;
  const std::int64_t works = a.routes.num_tiles * a.problem.num_kv_heads;
  const bool persistent = parameters.schedule.splits == 1 && !parameters.schedule.in_block_route;
  LaunchShape shape;
  shape.blocks = persistent ? std::min<std::int64_t>(works, num_processors * Tr::blocks_per_processor)
                            : works * parameters.schedule.splits;
  shape.threads = Tr::threads;
  shape.shared_bytes = Tr::bytes;
  shape.device = a.device;
  shape.cluster = parameters.schedule.splits;
  shape.clusters = true;
  shape.overlaps_previous = !parameters.schedule.in_block_route;
  launch<attend_kernel<T, kDim, kF8, kWarpgroups>>("attend_kernel (sm90)", shape, Tr::bytes, stream, parameters);
}

template <int kDim, int kWarpgroups>
void launch_warpgroups(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  const AttentionProblem& problem = parameters.attend.problem;
  const bool f8 = problem.kv_dtype == DType::f8_e4m3;
  if (problem.out.dtype == DType::bf16) {
    f8 ? launch_as<__nv_bfloat16, kDim, true, kWarpgroups>(parameters, num_processors, stream)
       : launch_as<__nv_bfloat16, kDim, false, kWarpgroups>(parameters, num_processors, stream);
  } else {
    f8 ? launch_as<__half, kDim, true, kWarpgroups>(parameters, num_processors, stream)
       : launch_as<__half, kDim, false, kWarpgroups>(parameters, num_processors, stream);
  }
}

/// Consumer warpgroups of the wide kernel.
inline constexpr int wide_warpgroups = 2;

template <int kDim>
void launch_dim(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  parameters.schedule.wide ? launch_warpgroups<kDim, wide_warpgroups>(parameters, num_processors, stream)
                           : launch_warpgroups<kDim, 1>(parameters, num_processors, stream);
}

template <class Tr>
KernelShape shape_of_traits() {
  return {Tr::warpgroups, Tr::blocks_per_processor, Tr::route_entries, Tr::route_slots, Tr::route_words};
}
template <int kDim>
KernelShape shape_dim(bool wide) {
  return wide ? shape_of_traits<Traits<__half, kDim, false, wide_warpgroups>>()
              : shape_of_traits<Traits<__half, kDim, false, 1>>();
}

}  // namespace kvsieve::cuda::sm90
