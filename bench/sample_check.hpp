// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

/// Query rows of a call.
std::int64_t count_rows(const io::Case& test_case);

/// `count` distinct rows below `total`, ascending, spread evenly: a random one from each of `count` equal parts. All of
/// them when there are no more.
std::vector<std::int64_t> sample_rows(std::int64_t total, std::int64_t count);

/// Checks some rows, every head, of what a call on poisoned outputs left in `out` and `lse` (contiguous, host memory).
/// The case needs to hold, in host memory, what these rows read.
SampledErrors check_rows(const io::Case& test_case, const Tensor& out, const Tensor& lse,
                         const std::vector<std::int64_t>& rows, int num_threads);

/// Checks a sample of the rows of a run that has been executed on poisoned outputs.
SampledErrors check_sampled_rows(const io::CaseRun& run, std::int64_t rows, int num_threads);

/// One line that says what is wrong, empty when the errors are within the tolerances.
std::string describe(const SampledErrors& errors, DType out_dtype);

}  // namespace kvsieve::bench
