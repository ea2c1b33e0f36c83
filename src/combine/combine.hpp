// SPDX-License-Identifier: Apache-2.0
//
// combine: merges the (output, log-sum-exp) states of a query row over disjoint sets of keys. Serves the split-KV of
// the CPU backend and the public merge_states.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace kvsieve {

/// States of (row, head) pairs: state s of a pair is at s * stride_state of it. Strides in elements.
struct States {
  const void* out = nullptr;
  DType out_dtype = DType::f32;
  std::int64_t out_stride_state = 0;
  std::int64_t out_stride_row = 0;
  std::int64_t out_stride_head = 0;
  const float* lse = nullptr;
  std::int64_t lse_stride_state = 0;
  std::int64_t lse_stride_row = 0;
  std::int64_t lse_stride_head = 0;
  std::int64_t num_states = 0;
};

/// Merged state of one (row, head) pair, in the order of the states: writes `head_dim` floats to `out` and returns the
/// log-sum-exp. States with lse = -infinity are not read.
float combine_states(const States& states, std::int64_t row, std::int64_t head, std::int64_t head_dim, float* out);

/// Shape of a merged output.
struct MergeShape {
  std::int64_t num_rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
};

/// Merges the states of every (row, head) pair on the CPU into `out` (f32, bf16 or f16) and, when defined, `lse`.
void merge_states_on_cpu(const States& states, const RowHeads& out, const RowHeads& lse, const MergeShape& shape,
                         int num_threads);

/// log(sum_s exp(lse[s * stride])): -infinity when all are.
float combine_lse(const float* lse, std::int64_t stride, std::int64_t num_states);

}  // namespace kvsieve
