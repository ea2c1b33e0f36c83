// SPDX-License-Identifier: Apache-2.0
#include "bench/sample_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "core/numeric.hpp"
#include "core/thread_pool.hpp"
#include "io/random.hpp"
#include "reference/reference.hpp"

namespace kvsieve::bench {
namespace {

std::int64_t count_non_finite(const Tensor& contiguous, int num_threads) {
  const std::int64_t total = contiguous.numel(), parts = std::min<std::int64_t>(total, 64);
  std::atomic<std::int64_t> count = 0;
  ThreadPool::instance().parallel_for(parts, num_threads, [&](std::int64_t part, int) noexcept {
    std::int64_t found = 0;
    for (std::int64_t i = total * part / parts; i < total * (part + 1) / parts; ++i) {
      if (!std::isfinite(load_as_float(contiguous.data, contiguous.dtype, i))) ++found;
    }
    count += found;
  });
  return count;
}

void reference_row(const io::Case& test_case, std::int64_t row, const reference::Row& result) {
  if (test_case.is_msa()) {
    reference::msa_row(test_case.msa, test_case.decode(), row, result);
  } else {
    reference::qsa_row(test_case.qsa_config, test_case.qsa, row, result);
  }
}

/// The rows of a contiguous [rows, width] tensor, as f32.
std::vector<float> gather(const Tensor& tensor, const std::vector<std::int64_t>& rows, std::int64_t width) {
  std::vector<float> values;
  values.reserve(rows.size() * static_cast<std::size_t>(width));
  for (const std::int64_t row : rows) {
    for (std::int64_t i = 0; i < width; ++i) {
      values.push_back(load_as_float(tensor.data, tensor.dtype, row * width + i));
    }
  }
  return values;
}

Tensor view(const std::vector<float>& values) {
  return Tensor(values.data(), DType::f32, {static_cast<std::int64_t>(values.size())});
}

}  // namespace

std::int64_t count_rows(const io::Case& test_case) {
  const Tensor& q = test_case.q();
  const std::int64_t width = q.shape[q.rank - 2] * q.shape[q.rank - 1];
  return width == 0 ? 0 : q.numel() / width;
}

std::vector<std::int64_t> sample_rows(std::int64_t total, std::int64_t count) {
  count = std::min(count, total);
  io::Random random(static_cast<std::uint64_t>(total));
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = total * i / count, end = total * (i + 1) / count;
    rows.push_back(begin + random.below(end - begin));
  }
  return rows;
}

SampledErrors check_rows(const io::Case& test_case, const Tensor& out, const Tensor& lse,
                         const std::vector<std::int64_t>& rows, int num_threads) {
  const Tensor& q = test_case.q();
  const std::int64_t heads = q.shape[q.rank - 2];
  const std::int64_t width = heads * q.shape[q.rank - 1];
  const auto count = static_cast<std::int64_t>(rows.size());

  std::vector<double> exact_out(static_cast<std::size_t>(count * width));
  std::vector<double> exact_lse(static_cast<std::size_t>(count * heads));
  ThreadPool::instance().parallel_for(count, num_threads, [&](std::int64_t i, int) noexcept {
    reference_row(test_case, rows[i], {exact_out.data() + i * width, exact_lse.data() + i * heads, nullptr});
  });
  const std::vector<float> want_out(exact_out.begin(), exact_out.end()), want_lse(exact_lse.begin(), exact_lse.end());
  const std::vector<float> got_out = gather(out, rows, width), got_lse = gather(lse, rows, heads);
  return {io::compare_out(view(got_out), view(want_out)), io::compare_lse(view(got_lse), view(want_lse)), count,
          count_non_finite(out, num_threads)};
}

SampledErrors check_sampled_rows(const io::CaseRun& run, std::int64_t rows, int num_threads) {
  const io::Case& test_case = run.test_case();
  return check_rows(test_case, run.out(), run.lse(), sample_rows(count_rows(test_case), rows), num_threads);
}

std::string describe(const SampledErrors& errors, DType out_dtype) {
  if (errors.non_finite != 0) return fmt::format("out: {} elements are not finite", errors.non_finite);
  const io::Tolerance tolerance = io::tolerance_for(out_dtype);
  const std::string out = io::describe(errors.out, tolerance);
  return !out.empty() ? out : io::describe(errors.lse, tolerance);
}

}  // namespace kvsieve::bench
