// SPDX-License-Identifier: Apache-2.0
//
// Device memory for the command, the tests and the benchmarks. The library itself allocates nothing.
#pragma once

#include <cstddef>
#include <memory>

#include "kvsieve/tensor.hpp"

namespace kvsieve::cuda {

/// Memory on a device, freed with the last reference. Throws Error when there is not enough.
std::shared_ptr<std::byte> allocate_device(std::size_t bytes, int device);

/// Copies between host and device, in either direction; returns when done.
void copy(void* to, const void* from, std::size_t bytes);

/// A tensor copied to a device, strides and the gaps between its elements included. `memory` receives what owns it.
Tensor to_device(const Tensor& tensor, int device, std::shared_ptr<std::byte>& memory);

/// Waits for everything enqueued on a device. Throws Error when something failed there.
void synchronize(int device);

}  // namespace kvsieve::cuda
