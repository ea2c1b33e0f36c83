// SPDX-License-Identifier: Apache-2.0
//
// Whether a result is right: the tolerances of the project and the errors they bound.
#pragma once

#include <cstdint>
#include <string>

#include "kvsieve/tensor.hpp"

namespace kvsieve::io {

/// Bounds on the errors of a whole output.
struct Tolerance {
  double frobenius = 0;   ///< |got - want| / |want|, Frobenius norms
  double element = 0.01;  ///< largest |got - want| / largest |want|
  double lse = 2e-3;      ///< largest |got - want|
};

/// 4e-3 relative Frobenius error for bf16 outputs, 1e-3 for f16, 1e-5 for f32.
Tolerance tolerance_for(DType out_dtype) noexcept;

/// Errors of an output. An expected output that is all zero leaves nothing to be relative to: both errors are then 0
/// when the result is zero as well and infinite when it is not.
struct OutError {
  double frobenius = 0;
  double element = 0;
  std::int64_t worst = -1;      ///< row-major index of the element that is furthest off
  std::int64_t non_finite = 0;  ///< elements that are NaN or infinite, in the result or the expectation
};
/// Any strides, any floating-point dtypes, equal shapes.
OutError compare_out(const Tensor& got, const Tensor& want);

/// Errors of a log-sum-exp. -infinity (a row without keys) must be met by -infinity.
struct LseError {
  double absolute = 0;
  std::int64_t worst = -1;
  std::int64_t mismatched = 0;  ///< NaN, +infinity, or -infinity on one side only
};
LseError compare_lse(const Tensor& got, const Tensor& want);

/// One line that says what is wrong with a result, empty when it is within the tolerance.
std::string describe(const OutError& error, const Tolerance& tolerance);
std::string describe(const LseError& error, const Tolerance& tolerance, const std::string& name = "lse");

}  // namespace kvsieve::io
