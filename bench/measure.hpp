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
  Device device{};
  Path path = Path::automatic;
  int num_threads = 0;  ///< of the CPU path and of the checks, at least 1
  int warm_ups = 3;
  /// Timed calls: at least this many, and more until `seconds` have passed or `most_repeats` are reached. On a GPU
  /// exactly this many.
  int repeats = 5;
  int most_repeats = 200;
  double seconds = 1.5;
  std::int64_t checked_rows = 8;
  /// CPU: also times the host checks of the arguments.
  bool time_checks = false;
};

/// What a workload took and gave. Trivially copyable, so that a process can send it to another one.
struct Measurement {
  Path path = Path::automatic;  ///< the one that ran
  double median_seconds = 0;
  double min_seconds = 0;
  int repeats = 0;
  double check_seconds = 0;  ///< CPU: host checks of one call
  double host_seconds = 0;   ///< GPU: what the host does for one call, validation and launches
  Work work;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  std::size_t workspace_bytes = 0;
  DType out_dtype = DType::none;
  SampledErrors errors;
};

/// Called with what is about to happen.
using OnStage = std::function<void(const std::string& stage)>;

/// Generates the workload, calls it on poisoned outputs, times it, and checks what the last call left.
///
/// CPU: the whole call by the wall clock, warm (the same data each time). GPU: the whole call captured in a CUDA graph;
/// before each replay 256 MiB of random bytes are copied on the same stream, so that the L2 cache is cold, and events
/// around the replay give its time.
///
/// Throws UnsupportedError where there is no such device.
Measurement measure(const Workload& workload, const MeasureSettings& settings, const OnStage& on_stage = {});

}  // namespace kvsieve::bench
