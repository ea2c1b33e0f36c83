// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "combine/combine_cuda.hpp"
#include "cuda/check.hpp"
#include "cuda/convert.cuh"

namespace kvsieve::cuda {
namespace {

constexpr int num_threads = 128;

/// log(sum exp) of states, in their order; -infinity when all are, NaN when one is.
__device__ float combined_lse(const float* lse, std::int64_t stride, std::int64_t num_states) {
  float max = -INFINITY;
  for (std::int64_t s = 0; s < num_states; ++s) {
    const float value = lse[s * stride];
    if (value > max || isnan(value)) max = value;
    if (isnan(max)) return max;
  }
  if (isinf(max)) return max;
  float sum = 0.0f;
  for (std::int64_t s = 0; s < num_states; ++s) sum += expf(lse[s * stride] - max);
  return max + logf(sum);
}

/// One thread block a (row, head) pair.
__global__ void __launch_bounds__(num_threads) combine_kernel(const __grid_constant__ CombineParameters p) {
  const std::int64_t row = blockIdx.x / p.shape.num_heads;
  const std::int64_t head = blockIdx.x % p.shape.num_heads;
  const States& states = p.states;
  const std::int64_t lse_at = row * states.lse_stride_row + head * states.lse_stride_head;
  const float total = combined_lse(states.lse + lse_at, states.lse_stride_state, states.num_states);
  const float v_scale = p.problem.v_scale.get();
  const std::int64_t out_at = row * states.out_stride_row + head * states.out_stride_head;
  for (std::int64_t dim = threadIdx.x; dim < p.shape.head_dim; dim += num_threads) {
    float value = 0.0f;
    for (std::int64_t s = 0; total != -INFINITY && s < states.num_states; ++s) {
      const float state_lse = states.lse[lse_at + s * states.lse_stride_state];
      if (state_lse == -INFINITY) continue;  // an empty state: its output is not read
      value += expf(state_lse - total) *
               load_float(states.out, states.out_dtype, out_at + s * states.out_stride_state + dim);
    }
    store_output(p.problem, row, head, dim, value * v_scale);
  }
  if (threadIdx.x != 0) return;
  store_lse(p.problem.lse, row, head, total);
  if (p.lse_t_states != nullptr) {
    store_lse(p.problem.lse_t, row, head,
              combined_lse(p.lse_t_states + lse_at, states.lse_stride_state, states.num_states));
  }
}

}  // namespace

void combine(const CombineParameters& parameters, cudaStream_t stream) {
  const std::int64_t blocks = parameters.shape.num_rows * parameters.shape.num_heads;
  if (blocks == 0) return;
  combine_kernel<<<static_cast<unsigned>(blocks), num_threads, 0, stream>>>(parameters);
  check_launch("combine_kernel");
}

}  // namespace kvsieve::cuda
