// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "kvsieve/error.hpp"

namespace kvsieve::cuda {
namespace {

Devices query_devices() {
  Devices result;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    result.problem = std::string("no CUDA device: ") + cudaGetErrorString(status);
    cudaGetLastError();  // the failure is ours to report, not the next call's
    return result;
  }
  if (count == 0) result.problem = "no CUDA device";
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    result.properties.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                                 static_cast<int>(properties.sharedMemPerBlockOptin)});
  }
  return result;
}

}  // namespace

const Devices& devices() {
  static const Devices result = query_devices();
  return result;
}

const DeviceProperties& device_properties(int index) {
  const Devices& all = devices();
  if (!all.problem.empty()) throw UnsupportedError(all.problem);
  if (index < 0 || index >= static_cast<int>(all.properties.size())) {
    throw UnsupportedError("no device cuda:" + std::to_string(index) + ", there are " +
                           std::to_string(all.properties.size()));
  }
  const DeviceProperties& properties = all.properties[static_cast<std::size_t>(index)];
  if (properties.major < 8) {
    throw UnsupportedError(properties.name + " has compute capability " + std::to_string(properties.major) + "." +
                           std::to_string(properties.minor) + "; kvsieve needs 8.0 or later");
  }
  return properties;
}

DeviceGuard::DeviceGuard(int index) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != index) {
    check(cudaSetDevice(index), "cudaSetDevice");
    changed_ = true;
  }
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(previous_);
}

}  // namespace kvsieve::cuda
