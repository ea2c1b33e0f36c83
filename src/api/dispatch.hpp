// SPDX-License-Identifier: Apache-2.0
//
// Which path runs a call, and what it needs.
#pragma once

#include <cstddef>

#include "core/problem.hpp"
#include "core/shape.hpp"
#include "kvsieve/options.hpp"

namespace kvsieve {

/// The path for a call on `device`: the forced one (CallOptions::path, else KVSIEVE_PATH) or the best available.
/// Path::automatic on a CUDA device: what the call is decides. Throws UnsupportedError when this build or machine has
/// none.
Path choose_path(Device device, const CallOptions& options);

/// Workspace of an attention call that any path of the device may need. 0 for a shape without rows, and for one that no
/// valid call has: sizes are taken before the validation, which refuses such a shape, looks at the workspace.
std::size_t attention_workspace_bytes(Device device, const Shape& shape);

/// Runs the pipeline on a path other than Path::reference; then, with CallOptions::check_indices, counts out-of-range
/// index entries and throws IndexError if there are any.
void run_attention(const AttentionProblem& problem, Device device, Path path, const CallOptions& options);

/// Throws IndexError when `bad_entries` is not 0.
void report_bad_indices(std::int64_t bad_entries);

ScalarSource scalar_source(const Scalar& scalar);

/// [row, head, ...] view of the last dimensions of a tensor: q, out, lse and the like.
RowHeads row_heads(const Tensor& tensor, std::int64_t stride_row, int head_dimension);

}  // namespace kvsieve
