// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_measure.hpp"

#include <memory>

#include "bench/graph_timer.hpp"
#include "bench/host_excerpt.hpp"
#include "bench/random_fill.hpp"
#include "cuda/device.hpp"
#include "cuda/device_memory.hpp"
#include "io/generate.hpp"

namespace kvsieve::bench {
namespace {

/// The workload's index tensors in host memory, with random q, K and V on the device.
io::Case generate_on_device(const io::GenerateOptions& options, Device device, cudaStream_t stream) {
  io::Case test_case = io::generate_indices(options);
  std::uint64_t seed = options.seed;
  const auto place = [&](Tensor& tensor) {
    const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * dtype_size(tensor.dtype);
    const std::shared_ptr<std::byte> memory = cuda::allocate_device(bytes, device.index);
    tensor.data = memory.get();
    tensor.device = device;
    test_case.memory.push_back(memory);
    fill_normal(tensor, seed++, stream);
  };
  if (test_case.is_msa()) {
    for (Tensor* const tensor : {&test_case.msa.q, &test_case.msa.k, &test_case.msa.v}) place(*tensor);
  } else {
    for (Tensor* const tensor : {&test_case.qsa.q, &test_case.qsa.k_cache, &test_case.qsa.v_cache}) place(*tensor);
  }
  cuda::synchronize(device.index);
  return test_case;
}

}  // namespace

Measurement measure_on_gpu(const Workload& workload, const MeasureSettings& settings, const OnStage& on_stage) {
  const auto stage = [&](const char* name) {
    if (on_stage) on_stage(name);
  };
  const int device = settings.device.index;
  cuda::device_properties(device);  // refuses what no path runs on
  const cuda::DeviceGuard guard(device);
  GraphTimer timer(device);
  CallOptions options;
  options.path = settings.path;
  options.stream = timer.stream();
  options.num_threads = settings.num_threads;
  Measurement result;

  stage("generating");
  io::CaseRun run(generate_on_device(workload.options, settings.device, timer.stream()), options, true,
                  settings.device);
  describe_run(run, result);

  stage("measuring");
  const auto enqueue = [&] { run.enqueue(); };
  timer.capture(enqueue);
  result.host_seconds = timer.host_seconds(enqueue);
  run.poison_outputs();  // what is checked has been written by replays
  cuda::synchronize(device);
  set_times(timer.replay(settings.warm_ups, settings.repeats), result);

  stage("checking");
  run.fetch_outputs();
  const std::vector<std::int64_t> rows = sample_rows(count_rows(run.test_case()), settings.checked_rows);
  const io::Case excerpt = host_excerpt(run.test_case(), rows, cuda::copy);
  result.errors = check_rows(excerpt, run.out(), run.lse(), rows, settings.num_threads);
  return result;
}

}  // namespace kvsieve::bench
