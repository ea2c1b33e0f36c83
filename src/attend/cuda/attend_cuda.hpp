// SPDX-License-Identifier: Apache-2.0
//
// The CUDA paths: route, attend and combine enqueued on a stream. Tile shapes and splits follow from shapes and
// the number of processors alone, so that a captured graph stays right for other contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/problem.hpp"
#include "core/shape.hpp"

namespace kvsieve::cuda {

/// Workspace for every call whose sizes are at most these, on a device.
std::size_t workspace_bytes(const Shape& shape, int device);

/// Throws UnsupportedError when the kernels take no call of these sizes (heads, top-k, block size, and as many rows).
/// What more a call may be refused for, the KV capacity that its page table describes, is not a size of the shape.
void check_sizes(const Shape& shape);

/// Why the Hopper kernels do not take a problem on a device, in one line; empty when they do.
std::string sm90_refusal(const AttentionProblem& problem, int device);

/// Enqueues the problem on `stream` (a cudaStream_t), with the Hopper kernels (which take it: sm90_refusal)
/// if `hopper`; with `check_indices` waits for it and returns the number of out-of-range index entries, else 0.
/// Throws UnsupportedError for a problem that the kernels do not take, Error when a launch fails.
std::int64_t attend(const AttentionProblem& problem, int device, bool hopper, void* workspace, void* stream,
                    bool check_indices);

}  // namespace kvsieve::cuda
