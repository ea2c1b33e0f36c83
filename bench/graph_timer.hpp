// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace kvsieve::bench {

/// Times what a function enqueues on a stream of the current device.
class GraphTimer {
 public:
  explicit GraphTimer(int device);
  ~GraphTimer();
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  cudaStream_t stream() const noexcept { return stream_; }

  /// Runs `enqueue` once, so that its kernels are loaded, and captures it in a graph.
  void capture(const std::function<void()>& enqueue);

  /// Seconds of each replay of the graph, from a cold L2 cache: before each one 256 MiB of random bytes are copied on
  /// the same stream. Uniform bytes may be compressed and evict less.
  std::vector<double> replay(int warm_ups, int samples);

  /// Mean time that the host spends in one `enqueue`. The device is waited for between batches, outside the times, so
  /// that its queue does not fill up and hold the host back.
  double host_seconds(const std::function<void()>& enqueue);

 private:
  double replay_once();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  std::shared_ptr<std::byte> flush_source_;
  std::shared_ptr<std::byte> flush_target_;
};

}  // namespace kvsieve::bench
