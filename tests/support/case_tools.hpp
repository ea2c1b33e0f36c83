// SPDX-License-Identifier: Apache-2.0
//
// Cases taken apart, moved to guarded memory, and checked against the reference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/case.hpp"
#include "io/case_run.hpp"
#include "kvsieve/options.hpp"
#include "support/guarded_memory.hpp"

namespace kvsieve::test {

/// A named argument of a case. Inputs that are not given are left out.
struct NamedTensor {
  std::string name;
  Tensor* tensor;
};
std::vector<NamedTensor> inputs_of(io::Case& test_case);
/// The inputs of integer type.
std::vector<NamedTensor> index_inputs_of(io::Case& test_case);

/// A copy of the case, each input alone in guarded memory, changed by `change` and then read-only.
io::Case guarded_copy(const io::Case& test_case, Guard guard, const std::function<void(io::Case&)>& change = {});

/// Element of an i32 or i64 tensor; `flat` counts in row-major order.
void set_integer(const Tensor& tensor, std::int64_t flat, std::int64_t value);
std::int64_t get_integer(const Tensor& tensor, std::int64_t flat);

/// Replaces NaN by numbers: garbage lengths and tables make rows attend, rightly, to tokens that no sequence had.
void make_finite(const Tensor& cache);

/// Options that force the CPU backend.
CallOptions cpu_options(int num_threads = 0);

/// Runs the case into poisoned outputs and compares every element with the float64 reference. Empty when right.
std::string check_against_reference(io::Case test_case, const CallOptions& options, bool with_lse = true,
                                    Device device = {});

/// Number of bad index entries that a call with CallOptions::check_indices reports, and the reference counts.
std::int64_t reported_bad_indices(const io::Case& test_case, CallOptions options, Device device = {});
std::int64_t reference_bad_indices(const io::Case& test_case);

}  // namespace kvsieve::test
