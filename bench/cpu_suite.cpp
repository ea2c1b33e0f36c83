// SPDX-License-Identifier: Apache-2.0
#include "bench/cpu_suite.hpp"

#include <algorithm>

#include "bench/child_process.hpp"
#include "bench/name_filter.hpp"

namespace kvsieve::bench {
namespace {

constexpr std::int64_t kv_length = 16384;
constexpr std::int64_t prefill_rows = 512;
constexpr std::size_t MiB = std::size_t{1} << 20;

CpuLimits measure_limits(int num_threads, bool quick) {
  CpuLimits limits;
  limits.sgemm_size = quick ? 256 : 2048;
  limits.read_buffer_bytes = (quick ? 16 : 1024) * MiB;
  const int repeats = quick ? 2 : 8;
  limits.sgemm = measure_sgemm(num_threads, limits.sgemm_size, repeats);
  limits.read_bytes_per_second = measure_read(num_threads, limits.read_buffer_bytes, repeats);
  return limits;
}

CpuLimits better(const CpuLimits& a, const CpuLimits& b) {
  CpuLimits limits = a;
  if (b.sgemm.flops_per_second > a.sgemm.flops_per_second) limits.sgemm = b.sgemm;
  limits.read_bytes_per_second = std::max(a.read_bytes_per_second, b.read_bytes_per_second);
  return limits;
}

}  // namespace

std::vector<CpuSuiteRow> cpu_suite_rows(const std::string& filter, bool quick) {
  std::vector<CpuSuiteRow> all;
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    const double prefill_target = kv_dtype == DType::bf16 ? 2.0 : 2.4;
    all.push_back({msa_prefill(prefill_rows, kv_length, kv_dtype), prefill_target});
    all.push_back({qsa_prefill(prefill_rows, kv_length, kv_dtype), prefill_target});
  }
  constexpr double decode_target = 2.5;
  for (const std::int64_t requests : {1, 16}) {
    for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
      for (Workload workload : {msa_decode(requests, kv_length, kv_dtype), qsa_decode(requests, kv_length, kv_dtype)}) {
        workload.name += " B " + std::to_string(requests);
        all.push_back({std::move(workload), decode_target});
      }
    }
  }
  std::vector<CpuSuiteRow> chosen;
  for (CpuSuiteRow& row : all) {
    if (!name_contains(row.workload.name, filter)) continue;
    if (quick) make_tiny(row.workload);
    chosen.push_back(std::move(row));
  }
  return chosen;
}

MeasureSettings cpu_suite_settings(int num_threads, bool quick) {
  MeasureSettings settings;
  settings.num_threads = num_threads;
  settings.time_checks = true;
  if (quick) {
    settings.repeats = settings.most_repeats = 2;
    settings.warm_ups = 1;
  }
  return settings;
}

double CpuRowResult::floor_seconds(const CpuLimits& limits) const {
  return std::max(measured.work.flops / limits.sgemm.flops_per_second,
                  measured.work.unique_bytes / limits.read_bytes_per_second);
}

std::size_t CpuRowResult::memory_limit() const {
  return measured.input_bytes + measured.output_bytes + measured.workspace_bytes + 64 * MiB;
}

CpuReport run_cpu_suite(const std::vector<CpuSuiteRow>& rows, int num_threads, bool quick, const OnStep& on_step) {
  const auto limits = [&](const char* step) {
    on_step(step);
    return value_from_child(step, [&] { return measure_limits(num_threads, quick); }).value;
  };
  CpuReport report;
  const CpuLimits before = limits("limits of the machine, before");
  const MeasureSettings settings = cpu_suite_settings(num_threads, quick);
  for (const CpuSuiteRow& row : rows) {
    on_step(row.workload.name);
    const auto result = value_from_child(row.workload.name, [&] { return measure(row.workload, settings); });
    report.rows.push_back({row, result.value, result.peak_bytes});
  }
  report.limits = better(before, limits("limits of the machine, after"));
  return report;
}

}  // namespace kvsieve::bench
