// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: cuts a problem into tiles (and splits), routes and attends each on some thread, combines the splits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "core/shape.hpp"

namespace kvsieve::cpu {

/// Workspace for every call whose sizes are at most these.
std::size_t workspace_bytes(const Shape& shape);

/// Computes the problem. The workspace holds at least workspace_bytes() of the problem's shape.
void attend(const AttentionProblem& problem, int num_threads, void* workspace);

}  // namespace kvsieve::cpu
