// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu_measure.hpp"
#include "bench/gpu_suite.hpp"
#include "bench_run.hpp"

namespace kvsieve::tools {

/// What a GPU suite measured, where and how.
struct GpuReport {
  std::string suite;
  bench::GpuMachine machine;
  bench::MeasureSettings settings;
  std::vector<bench::GpuRowResult> rows;
};

/// A heading that says how it was measured, a table of the rows and one of the groups' means.
std::string gpu_report_text(const GpuReport& report, const BenchRun& run);
nlohmann::ordered_json gpu_report_json(const GpuReport& report, const BenchRun& run);

}  // namespace kvsieve::tools
