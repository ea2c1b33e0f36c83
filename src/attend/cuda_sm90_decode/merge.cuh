// SPDX-License-Identifier: Apache-2.0
//
// combine, inside the decode kernel: the warps that shared a tile's keys leave their states in shared memory; they are
// merged in the order of the key warps, and then in that of the thread blocks of the cluster.
#pragma once

#include "attend/cuda_sm90_decode/key_warp.cuh"
#include "combine/merge_states.cuh"
#include "cuda/cluster.cuh"

namespace kvsieve::cuda::decode {

template <class Traits>
struct Merge {
  static constexpr int quads = Traits::dim / 4;

  const Parameters& p;
  unsigned char* shared;
  float* out;         ///< [key warp][row][D], over the rings; not normalised
  float2* stats;      ///< [key warp][row]: reference (base 2, scaled) and sum
  float2* merged;     ///< [row]
  int rows;           ///< of a state
  int num_real_rows;  ///< of the tile

  __device__ Merge(const Parameters& parameters, unsigned char* shared_memory, const Work& work)
      : p(parameters),
        shared(shared_memory),
        out(reinterpret_cast<float*>(shared_memory + parameters.schedule.rings_at)),
        stats(reinterpret_cast<float2*>(shared_memory + SharedMap::stats_at)),
        merged(reinterpret_cast<float2*>(shared_memory + SharedMap::merged_at)),
        rows(parameters.schedule.row_warps * Traits::warp_rows),
        num_real_rows(work.num_rows * parameters.schedule.group.size) {}

  /// Where a dim of a row lies in a state: eight rows meet different banks.
  __device__ static int place(int row, int column) { return row * Traits::dim + (column ^ (row & 7) << 3); }

  /// A warp's states. All warps have read their last tile.
  __device__ void write(const KeyWarp<Traits>& warp, int key_warp, int row_warp) const {
#pragma unroll
    for (int t = 0; t < Traits::row_tiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        write_row(warp.tiles[t], i, key_warp * rows, row_warp * Traits::warp_rows + 16 * t + warp.lane / 4 + 8 * i);
      }
    }
  }

  /// Merges all states of the tile and writes its rows, each thread block of a cluster a part of them.
  __device__ void finish(const Work& work) const {
    const int splits = p.schedule.splits;
    if (splits > 1) {
      merge_in_place();
      sync_cluster();
    }
    const std::uint32_t remote_out = shared_address(out);
    const std::uint32_t remote_stats = shared_address(merged);
#pragma unroll 1
    for (int i = static_cast<int>(work.split) * threads + static_cast<int>(threadIdx.x); i < num_real_rows * quads;
         i += splits * threads) {
      QuadState state;
      if (splits > 1) {
        const int row = i / quads;
        const auto at = static_cast<std::uint32_t>(place(row, i % quads * 4) * 4);
        state = merge_quad<8>(
            splits, [&](int s) { return load_remote_float2(map_to_rank(remote_stats + row * 8, s)); },
            [&](int s) { return load_remote_float4(map_to_rank(remote_out + at, s)); });
      } else {
        state = merge_key_warps(i);
      }
      const TokenHead at(p.schedule.group, i / quads);
      store_quad(p.attend.problem, work.row_begin + at.token, work.kv_head * p.schedule.group.size + at.head,
                 i % quads * 4, state);
    }
    if (splits > 1) sync_cluster();  // nobody leaves while its memory is read
  }

 private:
  __device__ void write_row(const RowTile<Traits>& tile, int i, int first_row, int row) const {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    float* const to = out + first_row * Traits::dim;
    if (quarter == 0) stats[first_row + row] = {tile.reference[i], tile.sum[i]};
    if constexpr (Traits::f8) {
#pragma unroll
      for (int d = 0; d < RowTile<Traits>::dim_tiles; d += 2) {
        *reinterpret_cast<float4*>(to + place(row, d * 8 + quarter * 4)) = {
            tile.o[d][2 * i], tile.o[d + 1][2 * i], tile.o[d][2 * i + 1], tile.o[d + 1][2 * i + 1]};
      }
    } else {
#pragma unroll
      for (int d = 0; d < RowTile<Traits>::dim_tiles; ++d) {
        *reinterpret_cast<float2*>(to + place(row, d * 8 + quarter * 2)) = {tile.o[d][2 * i], tile.o[d][2 * i + 1]};
      }
    }
  }

  /// The states of this thread block, into that of the first key warp.
  __device__ void merge_in_place() const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < num_real_rows * quads; i += threads) {
      const QuadState state = merge_key_warps(i);  // what it reads of the first key warp, only this thread writes
      const int row = i / quads;
      *reinterpret_cast<float4*>(out + place(row, i % quads * 4)) = state.total;
      if (i % quads == 0) merged[row] = {state.reference, state.sum};
    }
  }

  __device__ QuadState merge_key_warps(int i) const {
    const int row = i / quads;
    const int at = place(row, i % quads * 4);
    return merge_quad<warps>(
        p.schedule.key_warps, [&](int w) { return stats[w * rows + row]; },
        [&](int w) { return *reinterpret_cast<const float4*>(out + w * rows * Traits::dim + at); });
  }
};

}  // namespace kvsieve::cuda::decode
