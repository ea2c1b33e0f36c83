// SPDX-License-Identifier: Apache-2.0
//
// Merging attention states in float64 (kvsieve/merge.hpp has the formulas).
#include <vector>

#include "reference/reference.hpp"
#include "reference/softmax.hpp"

namespace kvsieve::reference {
namespace {

/// One row and head: the states that are not empty, each with its log-sum-exp, merged.
void merge_row_head(const MergeArguments& a, std::int64_t row, std::int64_t head) {
  const std::int64_t num_states = a.outs.shape[0], head_dim = a.outs.shape[3];
  KeySet states;  // a state is a "key" whose logit is its log-sum-exp and whose value is its output
  states.head_dim = head_dim;
  std::vector<double> lses;
  for (std::int64_t s = 0; s < num_states; ++s) {
    const double lse = number_at(a.lses, offset_of(a.lses, s, row, head));
    if (lse == -std::numeric_limits<double>::infinity()) continue;
    const std::int64_t offset = offset_of(a.outs, s, row, head);
    lses.push_back(lse);
    states.add(a.outs, offset, a.outs, offset);
  }

  const double lse = log_sum_exp(lses);
  std::vector<double> out(head_dim);
  weighted_values(lses, lse, states, 1.0, out.data());
  for (std::int64_t d = 0; d < head_dim; ++d) store_at(a.out, offset_of(a.out, row, head) + d, out[d]);
  if (a.lse.defined()) store_at(a.lse, offset_of(a.lse, row, head), lse);
}

}  // namespace

void merge(const MergeArguments& a) {
  for (std::int64_t row = 0; row < a.outs.shape[1]; ++row) {
    for (std::int64_t head = 0; head < a.outs.shape[2]; ++head) merge_row_head(a, row, head);
  }
}

}  // namespace kvsieve::reference
