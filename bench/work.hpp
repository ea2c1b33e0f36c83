// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/case.hpp"

namespace kvsieve::bench {

/// What any implementation of a call has to do.
struct Work {
  /// 4 D for each (row, query head, key) that is attended to: a multiplication and an addition in each of the two
  /// products.
  double flops = 0;
  /// K and V of the tokens that some row selects, once for each KV head; q, and out.
  double unique_bytes = 0;
};

/// Counts from the index tensors. The case is a well-formed one: every id is in range or -1, none is repeated.
Work count_work(const io::Case& test_case);

}  // namespace kvsieve::bench
