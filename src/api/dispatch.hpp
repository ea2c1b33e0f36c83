// SPDX-License-Identifier: Apache-2.0
//
// Which path runs a call, and what it needs.
#pragma once

#include <cstddef>

#include "core/problem.hpp"
#include "core/shape.hpp"
#include "kvsieve/msa.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/qsa.hpp"

namespace kvsieve {

/// The path for a call on `device`: the forced one (CallOptions::path, else KVSIEVE_PATH) or the best available.
/// Path::automatic on a CUDA device: what the call is decides. Throws UnsupportedError when this build or machine has
/// none.
Path choose_path(Device device, const CallOptions& options);

/// The path that runs a problem when choose_path gave `chosen`: that one, and where it is Path::automatic on a CUDA
/// device the one that takes the problem. Both the dispatch of a call and what is reported of it follow this. Throws
/// UnsupportedError when a forced path does not take the problem.
Path resolve_path(const AttentionProblem& problem, Device device, Path chosen);

/// The path that runs a call: choose_path and resolve_path of arguments that are valid. With Path::reference no problem
/// is made of the call.
Path msa_path(const MsaArguments& arguments, const CallOptions& options, bool decode);
Path qsa_path(const QsaConfig& config, const QsaArguments& arguments, const CallOptions& options);

/// Throws UnsupportedError when this build and machine take no call of these sizes on the device, so that a plan can
/// be refused in the words in which its calls would be.
void require_sizes(Device device, const Shape& shape);

/// Workspace of an attention call that any path of the device may need. 0 for a shape without rows, and for one that no
/// valid call has: sizes are taken before the validation, which refuses such a shape, looks at the workspace.
std::size_t attention_workspace_bytes(Device device, const Shape& shape);

/// Runs the pipeline on what resolve_path says of `path`, which is not Path::reference; then, with
/// CallOptions::check_indices, counts out-of-range index entries and throws IndexError if there are any.
void run_attention(const AttentionProblem& problem, Device device, Path path, const CallOptions& options);

/// Throws IndexError when `bad_entries` is not 0.
void report_bad_indices(std::int64_t bad_entries);

ScalarSource scalar_source(const Scalar& scalar);

/// [row, head, ...] view of the last dimensions of a tensor: q, out, lse and the like.
RowHeads row_heads(const Tensor& tensor, std::int64_t stride_row, int head_dimension);

}  // namespace kvsieve
