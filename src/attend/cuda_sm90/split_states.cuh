// SPDX-License-Identifier: Apache-2.0
//
// combine, inside the Hopper attend kernel: the thread blocks of a cluster hold the states of one tile for their shares
// of the keys; each merges a part of the output from all of them, in the order of their ranks.
#pragma once

#include <cmath>

#include "attend/cuda_sm90/output.cuh"
#include "attend/cuda_sm90/traits.cuh"
#include "cuda/cluster.cuh"
#include "cuda/ptx.cuh"

namespace kvsieve::cuda::sm90 {

/// States in shared memory: outputs that are not normalised [row][D] over the slots, maximum (base 2, scaled) and sum
/// [row] over the queries. Column c of row r lies at c ^ 8 (r & 7), against bank conflicts.
template <class Traits>
struct SplitStates {
  static constexpr int rows = Traits::warpgroups * 64;
  static constexpr int consumers = Traits::warpgroups * 128;

  const Parameters& parameters;
  unsigned char* shared;

  __device__ SplitStates(const Parameters& all, unsigned char* shared_memory)
      : parameters(all), shared(shared_memory) {}

  __device__ static int place(int row, int column) { return row * Traits::dim + (column ^ (row & 7) << 3); }

  /// By the consumers; the producer calls skip().
  template <class Consumer>
  __device__ void combine(const Consumer& consumer, const Work& work) const {
    sync_named(2, consumers);  // all have read their last slot and query
    float* const out = reinterpret_cast<float*>(shared + Traits::slots_at);
    float2* const stats = reinterpret_cast<float2*>(shared + Traits::queries_at);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = consumer.warpgroup * 64 + consumer.warp * 16 + consumer.lane / 4 + 8 * i;
      if (consumer.lane % 4 == 0) stats[row] = {consumer.max[i] * consumer.scale, consumer.sum[i]};
#pragma unroll
      for (int d = 0; d < Traits::dim / 8; ++d) {
        *reinterpret_cast<float2*>(out + place(row, d * 8 + consumer.lane % 4 * 2)) = {consumer.o[4 * d + 2 * i],
                                                                                       consumer.o[4 * d + 2 * i + 1]};
      }
    }
    sync_cluster();
    merge(work);
    sync_cluster();  // nobody leaves while its memory is read
  }

  __device__ static void skip() {
    sync_cluster();
    sync_cluster();
  }

  __device__ void merge(const Work& work) const {
    constexpr int quads = Traits::dim / 4;
    const AttentionProblem& problem = parameters.attend.problem;
    const int splits = parameters.schedule.splits;
    const int rank = static_cast<int>(blockIdx.x) & (splits - 1);
    const int group = static_cast<int>(problem.group());
    const int used = parameters.schedule.warpgroup_tokens * group;  // rows of a warpgroup that may be real
    const std::uint32_t out = shared_address(shared + Traits::slots_at);
    const std::uint32_t stats = shared_address(shared + Traits::queries_at);
    for (int i = rank * consumers + static_cast<int>(threadIdx.x); i < Traits::warpgroups * used * quads;
         i += splits * consumers) {
      const int warpgroup = i / quads / used;
      const int warpgroup_row = i / quads % used;
      const int token = warpgroup * parameters.schedule.warpgroup_tokens + warpgroup_row / group;
      if (token >= work.num_rows) continue;
      const int row = warpgroup * 64 + warpgroup_row;
      const int column = i % quads * 4;
      float max = -INFINITY;
      for (int s = 0; s < splits; ++s) max = fmaxf(max, load_remote_float2(map_to_rank(stats + row * 8, s)).x);
      const float shift = max == -INFINITY ? 0.0f : max;
      float sum = 0.0f;
      float4 total{0, 0, 0, 0};
      for (int s = 0; s < splits; ++s) {
        const float2 state = load_remote_float2(map_to_rank(stats + row * 8, s));
        const float4 part = load_remote_float4(map_to_rank(out + place(row, column) * 4, s));
        const float weight = exp2_approximate(state.x - shift);
        sum += weight * state.y;
        total.x += weight * part.x;
        total.y += weight * part.y;
        total.z += weight * part.z;
        total.w += weight * part.w;
      }
      const std::int64_t q_row = work.row_begin + token;
      const std::int64_t head = work.kv_head * group + warpgroup_row % group;
      const float factor = sum == 0.0f ? 0.0f : problem.v_scale.get() / sum;
      store_pair<typename Traits::T>(problem.out, q_row, head, column, total.x * factor, total.y * factor);
      store_pair<typename Traits::T>(problem.out, q_row, head, column + 2, total.z * factor, total.w * factor);
      if (problem.gate.defined()) {
        for (int d = 0; d < 4; ++d) gate_element(problem, q_row, head, column + d);
      }
      constexpr float ln_2 = 0.693147180559945309f;
      if (column == 0) {
        store_lse(problem.lse, q_row, head, sum == 0.0f ? -INFINITY : ln_2 * (max + log2f(sum)));
      }
    }
  }
};

}  // namespace kvsieve::cuda::sm90
