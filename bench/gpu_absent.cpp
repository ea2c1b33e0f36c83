// SPDX-License-Identifier: Apache-2.0
//
// What a build without the CUDA backend says to the GPU measurements.
#include "bench/gpu_measure.hpp"

namespace kvsieve::bench {
namespace {

[[noreturn]] void refuse() {
  throw UnsupportedError(
      "measuring on a GPU needs a build with the CUDA backend (cmake --preset cuda) and an NVIDIA GPU: this build of "
      "kvsieve has no CUDA backend");
}

}  // namespace

GpuMachine best_gpu() { refuse(); }
Measurement measure_on_gpu(const Workload&, const MeasureSettings&, const OnStage&) { refuse(); }

}  // namespace kvsieve::bench
