// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/ptx.cuh for the emulator: what the Hopper kernel and the routes use of it.
#pragma once

#include "emulator/emulator.hpp"

namespace kvsieve::cuda {

using emulator::copy_async_16;
using emulator::copy_async_commit;
using emulator::shared_address;

template <int kPending>
void copy_async_wait() {
  emulator::copy_async_wait(kPending);
}
inline float exp2_approximate(float x) { return std::exp2(x); }
template <int kAlignment = 1024>
unsigned char* dynamic_shared_memory() {
  return emulator::block_memory();
}
inline void prefetch_l1(const void*) {}

}  // namespace kvsieve::cuda
