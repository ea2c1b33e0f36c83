// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA backend knows of a GPU. Queried once per process; a machine without a driver has no devices and a
// reason.
#pragma once

#include <string>
#include <vector>

namespace kvsieve::cuda {

struct DeviceProperties {
  std::string name;
  int major = 0;
  int minor = 0;
  int num_processors = 0;    ///< streaming multiprocessors
  int max_shared_bytes = 0;  ///< shared memory that a block may opt in to
};

struct Devices {
  std::vector<DeviceProperties> properties;
  std::string problem;  ///< one line when there is none: no driver, no device
};

const Devices& devices();

/// Throws UnsupportedError when there is no such device, or no path of this build is right for it.
const DeviceProperties& device_properties(int index);

/// Makes a device current for the life of the object.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace kvsieve::cuda
