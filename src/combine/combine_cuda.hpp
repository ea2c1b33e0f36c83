// SPDX-License-Identifier: Apache-2.0
//
// combine, on the device: merges states of query rows, for split-KV and for merge_states.
#pragma once

#include <cuda_runtime_api.h>

#include "combine/combine.hpp"
#include "core/problem.hpp"

namespace kvsieve::cuda {

/// Merges every (row, head) pair into `out` and, when defined, `lse`. `v_scale` multiplies the output; a gate and lse_t
/// come from `problem`, of which nothing else is used; lse_t needs `lse_t_states`, laid out as states.lse.
struct CombineParameters {
  States states;
  MergeShape shape;
  AttentionProblem problem;  ///< out, gate, lse, lse_t, v_scale
  const float* lse_t_states = nullptr;
};

void combine(const CombineParameters& parameters, cudaStream_t stream);

}  // namespace kvsieve::cuda
