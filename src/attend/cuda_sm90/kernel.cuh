// SPDX-License-Identifier: Apache-2.0
//
// Hopper attend kernel: wgmma consumers fed by a producer of asynchronous copies, compute capability 9.0a.
// docs/kernels/cuda_sm90.md draws the tile, the shared memory and the pipeline.
//
// A thread block works on tiles of neighbouring query rows. Each consumer warpgroup owns 64 (token, head) rows of the
// tile; one producer warpgroup gathers the keys that any row selected into a ring of slots (K and V alternate). The
// warpgroups share every load and skip chunks that none of their own rows selected.
#pragma once

#include "attend/cuda_sm90/consumer.cuh"
#include "attend/cuda_sm90/producer.cuh"
#include "attend/cuda_sm90/traits.cuh"
#include "attend/cuda_sm90/work.cuh"
#include "cuda/launch.cuh"

namespace kvsieve::cuda::sm90 {

template <class T, int kDim, bool kF8>
__global__ void __launch_bounds__(Traits<T, kDim, kF8>::threads, 1)
    attend_kernel(const __grid_constant__ Parameters parameters) {
  using Tr = Traits<T, kDim, kF8>;
  unsigned char* const shared_memory = dynamic_shared_memory();
  const Barriers<Tr> barriers{shared_address(shared_memory + Tr::barriers_at)};
  if (threadIdx.x == 0) {
    barriers.init();
    *reinterpret_cast<std::uint32_t*>(shared_memory + Tr::turn_at) = 0;
  }
  __syncthreads();
  wait_for_previous_kernel();
  launch_next_kernel();  // all thread blocks of this one run already
  if (parameters.schedule.whole_works < num_works(parameters)) {
    Shares<Tr>(parameters, shared_memory).cut();
    fence_async_proxy();  // the scan's memory was where the slots are
    __syncthreads();
  }
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == warpgroups) {
    release_registers<Tr::producer_registers>();
    Producer<Tr>(parameters, shared_memory, barriers).run();
  } else {
    claim_registers<Tr::consumer_registers>();
    Consumer<Tr>(parameters, shared_memory, barriers, warpgroup).run();
  }
}

template <class T, int kDim, bool kF8>
void launch_as(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  using Tr = Traits<T, kDim, kF8>;
  const AttendParameters& a = parameters.attend;
  const std::int64_t works = a.routes.num_tiles * a.problem.num_kv_heads;
  const bool shares = parameters.schedule.whole_works < works;
  LaunchShape shape;
  shape.blocks = shares ? num_processors : std::min<std::int64_t>(works, num_processors);
  shape.threads = Tr::threads;
  shape.shared_bytes = Tr::bytes;
  shape.device = a.device;
  shape.overlaps_previous = true;
  launch<attend_kernel<T, kDim, kF8>>("attend_kernel (sm90)", shape, Tr::bytes, stream, parameters);
  if (shares) combine_shares(parameters, static_cast<int>(shape.blocks), stream);
}

template <int kDim>
void launch_dim(const Parameters& parameters, int num_processors, cudaStream_t stream) {
  const AttentionProblem& problem = parameters.attend.problem;
  const bool f8 = problem.kv_dtype == DType::f8_e4m3;
  if (problem.out.dtype == DType::bf16) {
    f8 ? launch_as<__nv_bfloat16, kDim, true>(parameters, num_processors, stream)
       : launch_as<__nv_bfloat16, kDim, false>(parameters, num_processors, stream);
  } else {
    f8 ? launch_as<__half, kDim, true>(parameters, num_processors, stream)
       : launch_as<__half, kDim, false>(parameters, num_processors, stream);
  }
}

}  // namespace kvsieve::cuda::sm90
