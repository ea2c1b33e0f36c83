// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_timer.hpp"

#include <chrono>

#include "bench/random_fill.hpp"
#include "cuda/check.hpp"
#include "cuda/device_memory.hpp"

namespace kvsieve::bench {
namespace {

using cuda::check;

constexpr std::size_t flush_bytes = std::size_t{256} << 20;

}  // namespace

GraphTimer::GraphTimer(int device)
    : flush_source_(cuda::allocate_device(flush_bytes, device)),
      flush_target_(cuda::allocate_device(flush_bytes, device)) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  check(cudaEventCreate(&end_), "cudaEventCreate");
  fill_bits(flush_source_.get(), flush_bytes, 1, stream_);
}

GraphTimer::~GraphTimer() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void GraphTimer::capture(const std::function<void()>& enqueue) {
  enqueue();
  check(cudaStreamSynchronize(stream_), "the call");
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue();
  check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  check(cudaGraphUpload(graph_, stream_), "cudaGraphUpload");
}

double GraphTimer::replay_once() {
  // The copy takes longer than the host needs to enqueue what follows, so no launch is waited for between the events.
  check(cudaMemcpyAsync(flush_target_.get(), flush_source_.get(), flush_bytes, cudaMemcpyDeviceToDevice, stream_),
        "cudaMemcpyAsync");
  check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
  check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "the replayed call");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

std::vector<double> GraphTimer::replay(int warm_ups, int samples) {
  for (int i = 0; i < warm_ups; ++i) replay_once();
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(samples));
  for (int i = 0; i < samples; ++i) seconds.push_back(replay_once());
  return seconds;
}

double GraphTimer::host_seconds(const std::function<void()>& enqueue) {
  using Clock = std::chrono::steady_clock;
  constexpr int batch = 50, most_calls = 2000;
  const auto begin = Clock::now();
  std::chrono::duration<double> busy{};
  int calls = 0;
  do {
    const auto start = Clock::now();
    for (int i = 0; i < batch; ++i) enqueue();
    busy += Clock::now() - start;
    calls += batch;
    check(cudaStreamSynchronize(stream_), "the calls");
  } while (calls < most_calls && Clock::now() - begin < std::chrono::milliseconds(200));
  return busy.count() / calls;
}

}  // namespace kvsieve::bench
