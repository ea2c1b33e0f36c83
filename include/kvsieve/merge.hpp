// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvsieve/export.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve {

/// Attention states over disjoint sets of keys, to be merged into the state over their union: engines that shard the
/// KV cache over devices compute one state per shard.
///
///     lse = log(sum_s exp(lses[s])),   out = sum_s exp(lses[s] - lse) * outs[s]
///
/// summed in the order of s. A state with lse = -infinity is empty and its `outs` entry is not read; when all are
/// empty, out = 0 and lse = -infinity.
struct MergeArguments {
  /// [num_states, total_q, Hq, D] f32, bf16 or f16; last dimension contiguous.
  Tensor outs;
  /// [num_states, total_q, Hq] f32, natural log.
  Tensor lses;
  /// [total_q, Hq, D]; outs' dtype or any of f32, bf16, f16. Every row is written. Must not overlap an input.
  Tensor out;
  /// [total_q, Hq] f32, optional.
  Tensor lse;
};

/// Needs no workspace. Throws ArgumentError, UnsupportedError.
KVSIEVE_API void merge_states(const MergeArguments& arguments, const CallOptions& options = {});

}  // namespace kvsieve
