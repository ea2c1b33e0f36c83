// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_suite.hpp"

#include <algorithm>
#include <new>

namespace kvsieve::bench {

double GpuRowResult::triton_seconds() const {
  if (row.triton_flops_per_second > 0) return measured.work.flops / row.triton_flops_per_second;
  return row.published.triton * 1e-6;
}

std::vector<GroupMean> group_means(const std::vector<GpuRowResult>& results) {
  struct Sums {
    GroupMean mean;
    double weight = 0;
    double flops = 0;
  };
  std::vector<Sums> groups;
  for (const GpuRowResult& result : results) {
    if (result.row.group.empty()) continue;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Sums& sums) { return sums.mean.name == result.row.group; });
    if (group == groups.end()) {
      groups.push_back({});
      group = groups.end() - 1;
      group->mean.name = result.row.group;
    }
    if (!result.ran()) {
      ++group->mean.missing;
      continue;
    }
    const double weight = result.row.weight;
    ++group->mean.rows;
    group->weight += weight;
    group->flops += weight * result.measured.work.flops;
    group->mean.seconds += weight * result.measured.median_seconds;
    group->mean.floor_seconds += weight * result.floor_seconds();
    group->mean.triton_seconds += weight * result.triton_seconds();
  }
  std::vector<GroupMean> means;
  for (Sums& sums : groups) {
    GroupMean& mean = sums.mean;
    if (mean.rows > 0) {
      mean.flops_per_second = sums.flops / mean.seconds;
      mean.seconds /= sums.weight;
      mean.floor_seconds /= sums.weight;
      mean.triton_seconds /= sums.weight;
    }
    means.push_back(mean);
  }
  return means;
}

MeasureSettings gpu_suite_settings(Device device, Path path, int num_threads, int samples, bool quick) {
  MeasureSettings settings;
  settings.device = device;
  settings.path = path;
  settings.num_threads = num_threads;
  settings.warm_ups = quick ? 1 : 5;
  settings.repeats = quick ? 2 : samples;
  settings.checked_rows = 16;
  return settings;
}

std::vector<GpuRowResult> run_gpu_rows(const std::vector<GpuRow>& rows, const MeasureSettings& settings,
                                       const GpuProgress& progress) {
  std::vector<GpuRowResult> results;
  for (const GpuRow& row : rows) {
    progress.row(row.workload.name);
    GpuRowResult result{row, {}, ""};
    try {
      result.measured = measure(row.workload, settings, progress.stage);
    } catch (const Error& error) {
      result.error = error.what();
    } catch (const std::bad_alloc&) {
      result.error = "not enough host memory";
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace kvsieve::bench
