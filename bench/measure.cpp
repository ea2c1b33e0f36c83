// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "api/validate.hpp"
#include "bench/gpu_measure.hpp"
#include "io/generate.hpp"

namespace kvsieve::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::size_t bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<std::size_t>(tensor.numel()) * dtype_size(tensor.dtype) : 0;
}

std::size_t input_bytes(const io::Case& test_case) {
  const MsaArguments& m = test_case.msa;
  const QsaArguments& q = test_case.qsa;
  std::size_t bytes = 0;
  for (const Tensor* const tensor :
       {&m.q, &m.k, &m.v, &m.q2k_indices, &m.cu_seqlens_q, &m.cu_seqlens_k, &m.page_table, &m.seqused_k, &m.q_offset,
        &q.q, &q.k_cache, &q.v_cache, &q.block_table, &q.indexer_block_ids, &q.token_to_request, &q.query_positions,
        &q.qo_indptr, &q.output_gate}) {
    bytes += bytes_of(*tensor);
  }
  return bytes;
}

}  // namespace

void describe_run(const io::CaseRun& run, Measurement& result) {
  const io::Case& test_case = run.test_case();
  result.path = run.path();
  result.work = count_work(test_case);
  result.input_bytes = input_bytes(test_case);
  result.output_bytes = bytes_of(run.out()) + bytes_of(run.lse());
  result.workspace_bytes = run.workspace_size();
  result.out_dtype = run.out().dtype;
}

void set_times(std::vector<double> seconds, Measurement& result) {
  std::sort(seconds.begin(), seconds.end());
  result.median_seconds = seconds[seconds.size() / 2];
  result.min_seconds = seconds.front();
  result.repeats = static_cast<int>(seconds.size());
}

namespace {

/// Seconds that the host checks of one call take.
double time_host_checks(const io::CaseRun& run) {
  constexpr int calls = 20000;
  alignas(64) std::array<std::byte, 64> scratch;
  CallOptions options;
  options.workspace = {scratch.data(), scratch.size()};
  const io::Case& test_case = run.test_case();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) {
    if (test_case.is_msa()) {
      validate_msa(run.msa(), options, test_case.decode(), scratch.size());
    } else {
      validate_qsa(test_case.qsa_config, run.qsa(), options, scratch.size());
    }
  }
  return seconds_since(start) / calls;
}

void time_calls(io::CaseRun& run, const MeasureSettings& settings, Measurement& result) {
  for (int i = 0; i < settings.warm_ups; ++i) run.execute();
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  const auto wanted = [&] {
    const auto count = static_cast<int>(times.size());
    return count < settings.repeats || (count < settings.most_repeats && seconds_since(begin) < settings.seconds);
  };
  while (wanted()) {
    const Clock::time_point start = Clock::now();
    run.execute();
    times.push_back(seconds_since(start));
  }
  set_times(std::move(times), result);
}

}  // namespace

Measurement measure(const Workload& workload, const MeasureSettings& settings, const OnStage& on_stage) {
  if (settings.device.type == DeviceType::cuda) return measure_on_gpu(workload, settings, on_stage);
  const auto stage = [&](const char* name) {
    if (on_stage) on_stage(name);
  };
  CallOptions options;
  options.path = settings.path;
  options.num_threads = settings.num_threads;
  Measurement result;

  stage("generating");
  io::CaseRun run(io::generate_case(workload.options), options);
  describe_run(run, result);

  stage("measuring");
  run.poison_outputs();
  time_calls(run, settings, result);
  if (settings.time_checks) result.check_seconds = time_host_checks(run);

  stage("checking");
  // One row after the other: the reference holds a row's keys and values in float64, 12 MiB for 2,048 keys of head dim
  // 256. A row on each of many threads would be most of the process's memory, which the suite reports.
  result.errors = check_sampled_rows(run, settings.checked_rows, 1);
  return result;
}

}  // namespace kvsieve::bench
