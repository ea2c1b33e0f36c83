// SPDX-License-Identifier: Apache-2.0
//
// The CPU suite: the time of each row over a floor that this machine sets, measured in the same run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/machine_limits.hpp"
#include "bench/measure.hpp"

namespace kvsieve::bench {

struct CpuSuiteRow {
  Workload workload;
  double target = 0;  ///< time over floor, at most
};

/// The rows whose names contain `filter`, in any case. `quick`: tiny shapes, to see that everything works.
std::vector<CpuSuiteRow> cpu_suite_rows(const std::string& filter, bool quick);

/// How the rows are measured.
MeasureSettings cpu_suite_settings(int num_threads, bool quick);

struct CpuLimits {
  SgemmRate sgemm;
  std::int64_t sgemm_size = 0;
  double read_bytes_per_second = 0;
  std::size_t read_buffer_bytes = 0;
};

struct CpuRowResult {
  CpuSuiteRow row;
  Measurement measured;
  std::size_t peak_bytes = 0;  ///< of the process that did nothing but this row

  /// Larger of the useful FLOPs at the sgemm rate and the unique bytes at the read rate.
  double floor_seconds(const CpuLimits& limits) const;
  /// Best time over the floor, whose rates are the best of several measurements too: on a machine that others use, a
  /// median would compare a disturbed row with an undisturbed limit.
  double ratio(const CpuLimits& limits) const { return measured.min_seconds / floor_seconds(limits); }
  /// Inputs, outputs, workspace, and 64 MiB.
  std::size_t memory_limit() const;
  std::string failure() const { return describe(measured.errors, measured.out_dtype); }
};

struct CpuReport {
  CpuLimits limits;
  std::vector<CpuRowResult> rows;
};

/// Called before each step, of which there are rows + 2.
using OnStep = std::function<void(const std::string& step)>;

/// Every row, and each of the two measurements of the limits (before and after the rows; the better one counts), runs
/// in a process of its own. Throws Error when one of them fails.
CpuReport run_cpu_suite(const std::vector<CpuSuiteRow>& rows, int num_threads, bool quick, const OnStep& on_step);

}  // namespace kvsieve::bench
