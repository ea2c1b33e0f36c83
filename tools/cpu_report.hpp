// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/cpu_suite.hpp"
#include "bench_run.hpp"

namespace kvsieve::tools {

/// A heading that says how it was measured, and the tables.
std::string cpu_report_text(const bench::CpuReport& report, const BenchRun& run);
nlohmann::ordered_json cpu_report_json(const bench::CpuReport& report, const BenchRun& run);

}  // namespace kvsieve::tools
