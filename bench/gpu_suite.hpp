// SPDX-License-Identifier: Apache-2.0
//
// The GPU suites: rows measured one after another on one GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/gpu_rows.hpp"
#include "bench/measure.hpp"

namespace kvsieve::bench {

struct GpuRowResult {
  GpuRow row;
  Measurement measured;
  std::string error;  ///< why the row could not be measured; nothing of `measured` is set then

  bool ran() const { return error.empty(); }
  double floor_seconds() const { return bench::floor_seconds(measured.work); }
  /// Time of the Triton kernel: as published, or by its rate; 0 when neither is known.
  double triton_seconds() const;
  /// Empty when the row ran and what it left is right.
  std::string failure() const { return ran() ? describe(measured.errors, measured.out_dtype) : error; }
};

/// Means of a group over the rows that ran, each as often as its weight says.
struct GroupMean {
  std::string name;
  int rows = 0;     ///< that ran
  int missing = 0;  ///< that did not
  double seconds = 0;
  double floor_seconds = 0;
  double triton_seconds = 0;    ///< 0 when not known
  double flops_per_second = 0;  ///< useful FLOPs of all calls over the time of all calls
};
std::vector<GroupMean> group_means(const std::vector<GpuRowResult>& results);

/// How the rows are measured on a device.
MeasureSettings gpu_suite_settings(Device device, Path path, int num_threads, int samples, bool quick);

/// Called before each row and before each part of one.
struct GpuProgress {
  std::function<void(const std::string& row)> row;
  OnStage stage;
};

/// A row that fails does not stop the others.
std::vector<GpuRowResult> run_gpu_rows(const std::vector<GpuRow>& rows, const MeasureSettings& settings,
                                       const GpuProgress& progress);

}  // namespace kvsieve::bench
