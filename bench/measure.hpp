// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "bench/sample_check.hpp"
#include "bench/work.hpp"
#include "bench/workload.hpp"

namespace kvsieve::bench {

struct MeasureSettings {
  int num_threads = 0;  ///< at least 1
  int warm_ups = 3;
  /// Timed calls: at least this many, and more until `seconds` have passed or `most_repeats` are reached.
  int repeats = 5;
  int most_repeats = 200;
  double seconds = 1.5;
  std::int64_t checked_rows = 8;
  /// Also times the host checks of the arguments.
  bool time_checks = false;
};

/// What a workload took and gave. Trivially copyable, so that a process can send it to another one.
struct Measurement {
  Path path = Path::automatic;  ///< the one that ran
  double median_seconds = 0;
  double min_seconds = 0;
  int repeats = 0;
  double check_seconds = 0;  ///< host checks of one call
  Work work;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  std::size_t workspace_bytes = 0;
  DType out_dtype = DType::none;
  SampledErrors errors;
};

/// Called with what is about to happen.
using OnStage = std::function<void(const std::string& stage)>;

/// Generates the workload, calls it on poisoned outputs, times it (warm: the same data each time), and checks what the
/// last call left.
Measurement measure(const Workload& workload, const MeasureSettings& settings, const OnStage& on_stage = {});

}  // namespace kvsieve::bench
