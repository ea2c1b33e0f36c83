// SPDX-License-Identifier: Apache-2.0
//
// cub::BlockScan for the emulator.
#pragma once

#include <cstdint>

#include "emulator/emulator.hpp"

namespace cub {

template <class T, int kThreads>
class BlockScan {
 public:
  struct TempStorage {};
  explicit BlockScan(TempStorage&) {}
  void ExclusiveSum(T value, T& before, T& total) {
    const std::uint64_t* const values = kvsieve::emulator::exchange_in_block(static_cast<std::uint64_t>(value));
    T sum = 0;
    for (unsigned i = 0; i < kThreads; ++i) {
      if (i == kvsieve::emulator::thread_index().x) before = sum;
      sum += static_cast<T>(values[i]);
    }
    total = sum;
  }
};

}  // namespace cub
