// SPDX-License-Identifier: Apache-2.0
//
// Which keys a row attends to, one by one: a restatement of the rules of the public headers that shares no code with
// route, for tests that compare routes or that poison what nobody may read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "io/case.hpp"

namespace kvsieve::test {

struct AttendedToken {
  std::int64_t position = 0;
  std::int64_t page = 0;  ///< 0 in a flat cache
  std::int64_t slot = 0;  ///< token within the page
  friend bool operator==(const AttendedToken&, const AttendedToken&) = default;
};

/// The tokens that a row attends to, in order of position.
std::vector<AttendedToken> attended_tokens(const AttentionProblem& problem, std::int64_t row, std::int64_t kv_head);

/// What the rules read of a case: its shapes and index tensors. Values and outputs stay undefined.
AttentionProblem selection_of(const io::Case& test_case);

/// Fills each row of K and V whose token no row of the case attends to, for the row's KV head, with NaN.
void poison_unattended(io::Case& test_case);

}  // namespace kvsieve::test
