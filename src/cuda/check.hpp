// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kvsieve/error.hpp"

namespace kvsieve::cuda {

/// Throws Error with the runtime's message when a CUDA call failed.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// Throws Error when the launch just made failed.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace kvsieve::cuda
