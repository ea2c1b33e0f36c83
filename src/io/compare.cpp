// SPDX-License-Identifier: Apache-2.0
#include "io/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.hpp"
#include "io/tensor_storage.hpp"

namespace kvsieve::io {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Calls `element(index, got, want)` for each element, index counting in row-major order.
template <class Element>
void for_each_pair(const Tensor& got, const Tensor& want, Element&& element) {
  std::vector<std::int64_t> got_runs;
  for_each_run(got, [&](std::int64_t offset) { got_runs.push_back(offset); });
  const std::int64_t run = got.rank == 0 ? 1 : got.shape[got.rank - 1];
  const std::int64_t got_step = got.rank == 0 ? 1 : got.stride[got.rank - 1];
  const std::int64_t want_step = want.rank == 0 ? 1 : want.stride[want.rank - 1];
  std::size_t runs = 0;
  std::int64_t index = 0;
  for_each_run(want, [&](std::int64_t want_offset) {
    const std::int64_t got_offset = got_runs[runs++];
    for (std::int64_t i = 0; i < run; ++i, ++index) {
      element(index, static_cast<double>(load_as_float(got.data, got.dtype, got_offset + i * got_step)),
              static_cast<double>(load_as_float(want.data, want.dtype, want_offset + i * want_step)));
    }
  });
}

/// error / size, where nothing may be wrong with a quantity of size 0.
double relative(double error, double size) { return error == 0 ? 0 : size == 0 ? infinity : error / size; }

}  // namespace

Tolerance tolerance_for(DType out_dtype) noexcept {
  Tolerance tolerance;
  tolerance.frobenius = out_dtype == DType::bf16 ? 4e-3 : out_dtype == DType::f16 ? 1e-3 : 1e-5;
  return tolerance;
}

OutError compare_out(const Tensor& got, const Tensor& want) {
  OutError result;
  double error_squares = 0, want_squares = 0, largest_error = -1, largest_want = 0;
  for_each_pair(got, want, [&](std::int64_t index, double g, double w) {
    if (!std::isfinite(g) || !std::isfinite(w)) {
      if (result.non_finite++ == 0) result.worst = index;
      return;
    }
    const double error = std::fabs(g - w);
    error_squares += error * error;
    want_squares += w * w;
    largest_want = std::max(largest_want, std::fabs(w));
    if (error > largest_error) {
      largest_error = error;
      if (result.non_finite == 0) result.worst = index;
    }
  });
  result.frobenius = relative(std::sqrt(error_squares), std::sqrt(want_squares));
  result.element = relative(std::max(largest_error, 0.0), largest_want);
  return result;
}

LseError compare_lse(const Tensor& got, const Tensor& want) {
  LseError result;
  double largest = -1;
  for_each_pair(got, want, [&](std::int64_t index, double g, double w) {
    if (g == w && g < infinity) {  // equal -infinities have no difference to take
      if (result.worst < 0) result.worst = index;
      return;
    }
    if (!std::isfinite(g) || !std::isfinite(w)) {
      if (result.mismatched++ == 0) result.worst = index;
      return;
    }
    const double error = std::fabs(g - w);
    if (error > largest) {
      largest = error;
      if (result.mismatched == 0) result.worst = index;
    }
  });
  result.absolute = std::max(largest, 0.0);
  return result;
}

std::string describe(const OutError& error, const Tolerance& tolerance) {
  if (error.non_finite != 0) {
    return fmt::format("out: {} elements are not finite, the first is element {}", error.non_finite, error.worst);
  }
  // Written so that an error that is not a number fails.
  if (!(error.frobenius <= tolerance.frobenius)) {
    return fmt::format("out: relative error {:.2e} exceeds {:.0e}, worst at element {}", error.frobenius,
                       tolerance.frobenius, error.worst);
  }
  if (!(error.element <= tolerance.element)) {
    return fmt::format("out: element {} is off by {:.2e} of the largest magnitude, more than {:.0e}", error.worst,
                       error.element, tolerance.element);
  }
  return "";
}

std::string describe(const LseError& error, const Tolerance& tolerance, const std::string& name) {
  if (error.mismatched != 0) {
    return fmt::format("{}: {} elements are infinite or NaN where they should not be, the first is element {}", name,
                       error.mismatched, error.worst);
  }
  if (!(error.absolute <= tolerance.lse)) {
    return fmt::format("{}: element {} is off by {:.2e}, more than {:.0e}", name, error.worst, error.absolute,
                       tolerance.lse);
  }
  return "";
}

}  // namespace kvsieve::io
