// SPDX-License-Identifier: Apache-2.0
//
// combine, on the device: a thread merges four neighbouring dims of a row from its states, in their order, and writes
// them. The states lie in the shared memory of a thread block or its cluster, or in the workspace.
#pragma once

#include <cmath>

#include "cuda/convert.cuh"
#include "cuda/ptx.cuh"

namespace kvsieve::cuda {

/// Four dims of a row's output that is not normalised, with the row's reference (base 2, scaled) and sum.
struct QuadState {
  float reference = -INFINITY;
  float sum = 0.0f;
  float4 total{0, 0, 0, 0};
};

/// `stats(i)` is (reference, sum) of state i, `part(i)` its four dims. kBatch states are asked for at a time, since
/// each answer may come from another thread block.
template <int kBatch, class Stats, class Part>
__device__ __forceinline__ QuadState merge_quad(int states, const Stats& stats, const Part& part) {
  QuadState merged;
#pragma unroll 1
  for (int first = 0; first < states; first += kBatch) {
    float2 state[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) state[i] = stats(min(first + i, states - 1));
#pragma unroll
    for (int i = 0; i < kBatch; ++i) merged.reference = fmaxf(merged.reference, state[i].x);
  }
  // A row without a key keeps -infinity; 0 in its place keeps -infinity - -infinity out of the exponent.
  const float shift = merged.reference == -INFINITY ? 0.0f : merged.reference;
#pragma unroll 1
  for (int first = 0; first < states; first += kBatch) {
    float2 state[kBatch];
    float4 values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      state[i] = stats(min(first + i, states - 1));
      values[i] = part(min(first + i, states - 1));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= states) break;
      const float weight = exp2_approximate(state[i].x - shift);
      merged.sum += weight * state[i].y;
      merged.total.x += weight * values[i].x;
      merged.total.y += weight * values[i].y;
      merged.total.z += weight * values[i].z;
      merged.total.w += weight * values[i].w;
    }
  }
  return merged;
}

/// Writes four dims from `column` of a row, normalised and gated, and with the first of a row its lse. The output's
/// rows start at multiples of two elements.
__device__ __forceinline__ void store_quad(const AttentionProblem& problem, std::int64_t row, std::int64_t head,
                                           int column, const QuadState& state) {
  const float factor = state.sum == 0.0f ? 0.0f : problem.v_scale.get() / state.sum;
  const RowHeads& out = problem.out;
  auto* const to = static_cast<std::uint16_t*>(out.data) + row * out.stride_row + head * out.stride_head + column;
  const bool bf16 = out.dtype == DType::bf16;
  const float x = state.total.x * factor;
  const float y = state.total.y * factor;
  const float z = state.total.z * factor;
  const float w = state.total.w * factor;
  auto* const words = reinterpret_cast<std::uint32_t*>(to);
  words[0] = bf16 ? pack2<__nv_bfloat16>(x, y) : pack2<__half>(x, y);
  words[1] = bf16 ? pack2<__nv_bfloat16>(z, w) : pack2<__half>(z, w);
  if (problem.gate.defined()) {
#pragma unroll 1
    for (int d = 0; d < 4; ++d) gate_element(problem, row, head, column + d);
  }
  if (column == 0) {
    constexpr float ln_2 = 0.693147180559945309f;
    store_lse(problem.lse, row, head, state.sum == 0.0f ? -INFINITY : ln_2 * (state.reference + log2f(state.sum)));
  }
}

}  // namespace kvsieve::cuda
