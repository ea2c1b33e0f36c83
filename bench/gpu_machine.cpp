// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <tuple>

#include "bench/gpu_measure.hpp"
#include "cuda/check.hpp"
#include "cuda/device.hpp"

namespace kvsieve::bench {
namespace {

std::string cuda_version(int number) { return fmt::format("CUDA {}.{}", number / 1000, number % 1000 / 10); }

/// "580.65.06", the first word with two dots or one in the kernel module's line; "" when the system does not tell.
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool release =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (release) return word;
  }
  return "";
}

}  // namespace

GpuMachine best_gpu() {
  const cuda::Devices& all = cuda::devices();
  std::size_t best = 0;
  const auto rank = [&](std::size_t i) {
    const cuda::DeviceProperties& d = all.properties[i];
    return std::tuple(d.major, d.minor, d.num_processors);
  };
  for (std::size_t i = 1; i < all.properties.size(); ++i) {
    if (rank(i) > rank(best)) best = i;
  }
  GpuMachine machine;
  machine.device = {DeviceType::cuda, static_cast<int>(best)};
  const cuda::DeviceProperties& properties = cuda::device_properties(machine.device.index);
  machine.name = properties.name;
  machine.num_processors = properties.num_processors;
  int driver = 0, runtime = 0;
  cuda::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const std::string release = driver_release();
  machine.driver = (release.empty() ? "" : release + ", ") + cuda_version(driver);
  machine.runtime = cuda_version(runtime);
  return machine;
}

}  // namespace kvsieve::bench
