// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "combine/combine.hpp"
#include "core/numeric.hpp"
#include "core/thread_pool.hpp"

namespace kvsieve {
namespace {

/// out += weight * state, for one storage type; a loop that compilers vectorise.
template <class Load>
void add_state(std::int64_t head_dim, float weight, float* __restrict out, const Load& load) {
  for (std::int64_t i = 0; i < head_dim; ++i) out[i] += weight * load(i);
}

/// Maximum of the states' log-sum-exps that lets NaN through, as sums do.
float max_lse(const float* lse, std::int64_t stride, std::int64_t num_states) {
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t s = 0; s < num_states; ++s) {
    const float value = lse[s * stride];
    if (value > max || std::isnan(value)) max = value;
    if (std::isnan(max)) break;
  }
  return max;
}

/// Log-sum-exps of a (row, head) pair; without states there may be no memory to point into.
const float* lse_of(const States& states, std::int64_t row, std::int64_t head) {
  if (states.num_states == 0) return nullptr;
  return states.lse + row * states.lse_stride_row + head * states.lse_stride_head;
}

}  // namespace

float combine_lse(const float* lse, std::int64_t stride, std::int64_t num_states) {
  const float max = max_lse(lse, stride, num_states);
  if (std::isinf(max) || std::isnan(max)) return max;
  float sum = 0.0f;
  for (std::int64_t s = 0; s < num_states; ++s) sum += std::exp(lse[s * stride] - max);
  return max + std::log(sum);
}

float combine_states(const States& states, std::int64_t row, std::int64_t head, std::int64_t head_dim, float* out) {
  const float* lse = lse_of(states, row, head);
  const float total = combine_lse(lse, states.lse_stride_state, states.num_states);
  std::fill_n(out, head_dim, 0.0f);
  if (total == -std::numeric_limits<float>::infinity()) return total;
  const std::int64_t first = row * states.out_stride_row + head * states.out_stride_head;
  for (std::int64_t s = 0; s < states.num_states; ++s) {
    const float state_lse = lse[s * states.lse_stride_state];
    if (state_lse == -std::numeric_limits<float>::infinity()) continue;
    const float weight = std::exp(state_lse - total);
    const std::int64_t base = first + s * states.out_stride_state;
    if (states.out_dtype == DType::f32) {
      const float* from = static_cast<const float*>(states.out) + base;
      add_state(head_dim, weight, out, [from](std::int64_t i) { return from[i]; });
    } else if (states.out_dtype == DType::bf16) {
      const auto* from = static_cast<const std::uint16_t*>(states.out) + base;
      add_state(head_dim, weight, out, [from](std::int64_t i) { return bf16_to_float(from[i]); });
    } else {
      const auto* from = static_cast<const std::uint16_t*>(states.out) + base;
      add_state(head_dim, weight, out, [from](std::int64_t i) { return f16_to_float(from[i]); });
    }
  }
  return total;
}

void merge_states_on_cpu(const States& states, const RowHeads& out, const RowHeads& lse, const MergeShape& shape,
                         int num_threads) {
  ThreadPool& pool = ThreadPool::instance();
  const int threads = num_threads > 0 ? num_threads : pool.size();
  // A block of the head dim at a time: any head dim is legal here, and nothing is allocated.
  constexpr std::int64_t block = 256;
  pool.parallel_for(shape.num_rows, threads, [&](std::int64_t row, int) noexcept {
    float values[block];
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      const float total = combine_lse(lse_of(states, row, head), states.lse_stride_state, states.num_states);
      for (std::int64_t begin = 0; begin < shape.head_dim; begin += block) {
        const std::int64_t count = std::min(block, shape.head_dim - begin);
        States part = states;
        if (states.num_states > 0) {
          part.out =
              static_cast<const char*>(states.out) + begin * static_cast<std::int64_t>(dtype_size(states.out_dtype));
        }
        combine_states(part, row, head, count, values);
        const std::int64_t first = row * out.stride_row + head * out.stride_head + begin;
        for (std::int64_t i = 0; i < count; ++i) store_from_float(out.data, out.dtype, first + i, values[i]);
      }
      if (lse.defined()) static_cast<float*>(lse.data)[row * lse.stride_row + head * lse.stride_head] = total;
    }
  });
}

}  // namespace kvsieve
