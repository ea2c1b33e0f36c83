// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/cpu_suite.hpp"

namespace kvsieve::tools {

/// How the report came about.
struct BenchRun {
  std::string command;
  int num_threads = 0;
  bool quick = false;
};

/// A heading that says how it was measured, and the tables.
std::string cpu_report_text(const bench::CpuReport& report, const BenchRun& run);
nlohmann::ordered_json cpu_report_json(const bench::CpuReport& report, const BenchRun& run);

}  // namespace kvsieve::tools
