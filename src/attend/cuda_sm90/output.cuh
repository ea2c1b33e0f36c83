// SPDX-License-Identifier: Apache-2.0
//
// Writing output rows: pairs of 16-bit elements, and the gate in a second pass over what was written.
#pragma once

#include "cuda/convert.cuh"

namespace kvsieve::cuda::sm90 {

/// Rounds two neighbouring elements and stores them as one word.
template <class T>
__device__ __forceinline__ void store_pair(const RowHeads& out, std::int64_t row, std::int64_t head, std::int64_t dim,
                                           float first, float second) {
  auto* const to = static_cast<T*>(out.data) + row * out.stride_row + head * out.stride_head + dim;
  *reinterpret_cast<std::uint32_t*>(to) = pack2<T>(first, second);
}

/// out = round(attention) * sigmoid(gate) for an element that this thread has stored.
__device__ __forceinline__ void gate_element(const AttentionProblem& problem, std::int64_t row, std::int64_t head,
                                             std::int64_t dim) {
  const RowHeads& out = problem.out;
  const std::int64_t index = row * out.stride_row + head * out.stride_head + dim;
  const float gate =
      load_float(problem.gate.data, out.dtype, row * problem.gate.stride_row + head * problem.gate.stride_head + dim);
  store_float(out.data, out.dtype, index, load_float(out.data, out.dtype, index) / (1.0f + __expf(-gate)));
}

}  // namespace kvsieve::cuda::sm90
