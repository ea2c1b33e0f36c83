// SPDX-License-Identifier: Apache-2.0
//
// Hopper decode kernel: few query rows, whose time is that of bringing their keys. docs/kernels/cuda_sm90_decode.md
// draws the tile, the shared memory and the pipeline.
//
// A thread block finds the union of its tile's selections, then its four warps attend, each to its own share of the
// keys (or, beside others, for its own rows): copies, products and softmax in one warp, which waits for no other. The
// states are merged in shared memory, across a cluster where thread blocks share a tile's keys.
#pragma once

#include "attend/cuda_sm90_decode/key_warp.cuh"
#include "attend/cuda_sm90_decode/locate.cuh"
#include "attend/cuda_sm90_decode/merge.cuh"
#include "attend/cuda_sm90_decode/traits.cuh"
#include "cuda/launch.cuh"

namespace kvsieve::cuda::decode {

template <class T, int kDim, bool kF8, int kRowTiles>
__global__ void __launch_bounds__(threads, blocks_per_processor)
    decode_kernel(const __grid_constant__ Parameters parameters) {
  using Tr = Traits<T, kDim, kF8, kRowTiles>;
  const Schedule& schedule = parameters.schedule;
  unsigned char* const shared = dynamic_shared_memory<128>();
  const Work work(parameters);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_warp = warp % schedule.row_warps;
  const int key_warp = warp / schedule.row_warps;
  const bool active = key_warp < schedule.key_warps;  // three row warps leave one warp over

  KeyWarp<Tr> state(parameters);
  state.load_queries(work, row_warp);
  if (warp == 0) Barriers{shared_address(shared + SharedMap::barriers_at)}.init(schedule);
  auto* const route = reinterpret_cast<Route*>(shared + SharedMap::route_at);
  const std::int32_t count = route->build(parameters.attend.problem, parameters.attend.routes, work.row_begin,
                                          work.num_rows, parameters.attend.routes.num_lists == 1 ? 0 : work.kv_head,
                                          reinterpret_cast<std::uint32_t*>(shared + schedule.rings_at),
                                          reinterpret_cast<DeviceRouteEntry*>(shared + SharedMap::entries_at));
  const std::uint32_t first_share = work.split * schedule.key_warps;
  locate_blocks(parameters, work, *route, Units(parameters, count, first_share, first_share + schedule.key_warps),
                count, shared);
  __syncthreads();

  if (active) {
    const std::uint32_t share = first_share + key_warp;
    KeyRing<Tr> ring(parameters, shared, key_warp, row_warp, Units(parameters, count, share, share + 1));
    state.begin(work, row_warp, route->rows);
    state.attend(ring);
  }
  __syncthreads();
  const Merge<Tr> merge(parameters, shared, work);
  if (active) merge.write(state, key_warp, row_warp);
  __syncthreads();
  merge.finish(work);
}

inline LaunchShape launch_shape(std::int64_t blocks, int device, int cluster) {
  LaunchShape shape;
  shape.blocks = blocks;
  shape.threads = threads;
  shape.shared_bytes = shared_bytes;
  shape.device = device;
  shape.cluster = cluster;
  shape.clusters = true;
  return shape;
}

template <class T, int kDim, bool kF8, int kRowTiles>
void launch_rows(const Parameters& parameters, cudaStream_t stream) {
  const AttendParameters& a = parameters.attend;
  const int splits = parameters.schedule.splits;
  launch<decode_kernel<T, kDim, kF8, kRowTiles>>(
      "decode_kernel (sm90)", launch_shape(a.routes.num_tiles * a.problem.num_kv_heads * splits, a.device, splits),
      shared_bytes, stream, parameters);
}

template <class T, int kDim, bool kF8>
void launch_as(const Parameters& parameters, cudaStream_t stream) {
  // D 256: the outputs of 32 rows would take all registers.
  constexpr int most_row_tiles = kDim == 256 ? 1 : 2;
  if (parameters.schedule.warp_rows == 16) return launch_rows<T, kDim, kF8, 1>(parameters, stream);
  launch_rows<T, kDim, kF8, most_row_tiles>(parameters, stream);
}

template <int kDim>
void launch_dim(const Parameters& parameters, cudaStream_t stream) {
  const DType type = parameters.attend.problem.kv_dtype;
  if (type == DType::f8_e4m3) return launch_as<__half, kDim, true>(parameters, stream);
  if (type == DType::bf16) return launch_as<__nv_bfloat16, kDim, false>(parameters, stream);
  launch_as<__half, kDim, false>(parameters, stream);
}

/// All kernels occupy the same: one stands for them.
template <int kDim>
ActiveClusters clusters_dim(int device) {
  ActiveClusters clusters{};
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    clusters[i] = cuda::active_clusters<decode_kernel<__nv_bfloat16, kDim, false, 1>>(
        launch_shape(std::int64_t{1} << i, device, 1 << i));
  }
  return clusters;
}

}  // namespace kvsieve::cuda::decode
