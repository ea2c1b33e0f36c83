// SPDX-License-Identifier: Apache-2.0
//
// Measuring on a GPU. A build without the CUDA backend has these functions too, and they say so.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.hpp"

namespace kvsieve::bench {

struct GpuMachine {
  Device device{};
  std::string name;
  int num_processors = 0;
  std::string driver;   ///< "580.65.06, CUDA 13.0"
  std::string runtime;  ///< "CUDA 13.0"
};

/// The best GPU that some path of this build runs on. Throws UnsupportedError that says why there is none.
GpuMachine best_gpu();

/// measure() where settings.device is a GPU.
Measurement measure_on_gpu(const Workload& workload, const MeasureSettings& settings, const OnStage& on_stage);

// Shared by the measurements on CPU and GPU.

/// What is known of a run besides times and errors.
void describe_run(const io::CaseRun& run, Measurement& result);
/// Median and minimum of at least one time.
void set_times(std::vector<double> seconds, Measurement& result);

}  // namespace kvsieve::bench
