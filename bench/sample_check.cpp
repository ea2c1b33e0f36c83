// SPDX-License-Identifier: Apache-2.0
#include "bench/sample_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/numeric.hpp"
#include "core/thread_pool.hpp"
#include "io/random.hpp"
#include "reference/reference.hpp"

namespace kvsieve::bench {
namespace {

/// `count` distinct numbers below `total`, ascending.
std::vector<std::int64_t> sample(std::int64_t total, std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(total));
  std::iota(rows.begin(), rows.end(), 0);
  count = std::min(count, total);
  io::Random random(static_cast<std::uint64_t>(total));
  for (std::int64_t i = 0; i < count; ++i) std::swap(rows[i], rows[i + random.below(total - i)]);
  rows.resize(static_cast<std::size_t>(count));
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::int64_t count_non_finite(const Tensor& contiguous) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < contiguous.numel(); ++i) {
    if (!std::isfinite(load_as_float(contiguous.data, contiguous.dtype, i))) ++count;
  }
  return count;
}

void reference_row(const io::CaseRun& run, std::int64_t row, const reference::Row& result) {
  const io::Case& test_case = run.test_case();
  if (test_case.is_msa()) {
    reference::msa_row(run.msa(), test_case.decode(), row, result);
  } else {
    reference::qsa_row(test_case.qsa_config, run.qsa(), row, result);
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

SampledErrors check_sampled_rows(const io::CaseRun& run, std::int64_t rows, int num_threads) {
  const Tensor& q = run.test_case().q();
  const std::int64_t heads = q.shape[q.rank - 2];
  const std::int64_t width = heads * q.shape[q.rank - 1];
  const std::vector<std::int64_t> sampled = sample(q.numel() / width, rows);
  const auto count = static_cast<std::int64_t>(sampled.size());

  std::vector<double> out(static_cast<std::size_t>(count * width)), lse(static_cast<std::size_t>(count * heads));
  ThreadPool::instance().parallel_for(count, num_threads, [&](std::int64_t i, int) noexcept {
    reference_row(run, sampled[i], {out.data() + i * width, lse.data() + i * heads, nullptr});
  });
  const std::vector<float> want_out(out.begin(), out.end()), want_lse(lse.begin(), lse.end());
  const std::vector<float> got_out = gather(run.out(), sampled, width), got_lse = gather(run.lse(), sampled, heads);
  return {io::compare_out(view(got_out), view(want_out)), io::compare_lse(view(got_lse), view(want_lse)), count,
          count_non_finite(run.out())};
}

std::string describe(const SampledErrors& errors, DType out_dtype) {
  if (errors.non_finite != 0) return fmt::format("out: {} elements are not finite", errors.non_finite);
  const io::Tolerance tolerance = io::tolerance_for(out_dtype);
  const std::string out = io::describe(errors.out, tolerance);
  return !out.empty() ? out : io::describe(errors.lse, tolerance);
}

}  // namespace kvsieve::bench
