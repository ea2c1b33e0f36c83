// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/ptx.cuh for the emulator: what the Hopper kernel and the routes use of it.
#pragma once

#include "emulator/emulator.hpp"

namespace kvsieve::cuda {

using emulator::copy_async_16;
using emulator::copy_async_4;
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

/// Lane 8 m + r gives the address of row r of matrix m; lane l gets elements (2 (l % 4), l / 4) and the one below.
inline void load_matrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  const std::uint64_t* const rows = emulator::exchange(address);
  const unsigned lane = emulator::thread_index().x % 32;
  for (unsigned m = 0; m < 4; ++m) {
    const auto element = [&](unsigned row) {
      const auto at = static_cast<std::uint32_t>(rows[8 * m + row]);
      return static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(emulator::shared_pointer(at, 16))[lane / 4]);
    };
    r[m] = element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
  }
}

/// c += a * b for 16 x 8 x 16, as mma.sync deals the elements to the lanes.
template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  std::uint64_t words[3][32];
  const std::uint64_t mine[3] = {a[0] | std::uint64_t{a[1]} << 32, a[2] | std::uint64_t{a[3]} << 32,
                                 b0 | std::uint64_t{b1} << 32};
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t* const all = emulator::exchange(mine[i]);
    std::copy(all, all + 32, words[i]);
  }
  const auto half_of = [](std::uint64_t word, unsigned index) {
    return static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(word >> 16 * index)));
  };
  const unsigned lane = emulator::thread_index().x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4;
    const unsigned column = lane % 4 * 2 + i % 2;
    float total = c[i];
    for (unsigned k = 0; k < 16; ++k) {
      const float left = half_of(words[k / 8][row * 4 + k % 8 / 2], i / 2 * 2 + k % 2);
      const float right = half_of(words[2][column * 4 + k % 8 / 2], k / 8 * 2 + k % 2);
      total += left * right;
    }
    c[i] = total;
  }
}

}  // namespace kvsieve::cuda
