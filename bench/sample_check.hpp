// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "io/case_run.hpp"
#include "io/compare.hpp"

namespace kvsieve::bench {

/// Errors of a call against the float64 reference, on some of its rows.
struct SampledErrors {
  io::OutError out;
  io::LseError lse;
  std::int64_t rows = 0;
  /// Elements of the whole output that are NaN or infinite, which is what is left where nothing was written.
  std::int64_t non_finite = 0;
};

/// Checks random rows (all of them when there are no more than asked for), every head, of a run that has been executed
/// on poisoned outputs.
SampledErrors check_sampled_rows(const io::CaseRun& run, std::int64_t rows, int num_threads);

/// One line that says what is wrong, empty when the errors are within the tolerances.
std::string describe(const SampledErrors& errors, DType out_dtype);

}  // namespace kvsieve::bench
