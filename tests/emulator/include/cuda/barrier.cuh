// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/barrier.cuh for the emulator.
#pragma once

#include <cstdint>

#include "emulator/emulator.hpp"

namespace kvsieve::cuda {

struct Barrier {
  struct State {
    std::int32_t pending;
    std::uint16_t arrivals, phase;
  };
  std::uint32_t address;

  State& state() const { return *static_cast<State*>(emulator::shared_pointer(address, sizeof(State))); }
  void init(std::uint32_t arrivals) const {
    state() = {static_cast<std::int32_t>(arrivals), static_cast<std::uint16_t>(arrivals), 0};
  }
  static void arrive_at(State& s) {
    if (s.pending <= 0) emulator::fail("a barrier that nobody initialised");
    if (--s.pending > 0) return;
    s.pending = s.arrivals;
    s.phase ^= 1;
  }
  void arrive() const { arrive_at(state()); }
  void arrive_after_copies() const {
    emulator::after_copies([&s = state()] { arrive_at(s); });
  }
  bool test(std::uint32_t parity) const { return state().phase != parity; }
  void wait(std::uint32_t parity) const {
    emulator::wait_until([&] { return test(parity); });
  }
};

inline void fence_barrier_init() {}
inline void fence_async_proxy() {}
inline void copy_async_wait_all() { emulator::copy_async_wait_all(); }
inline void sync_named(int id, int threads) { emulator::sync_named(id, threads); }
template <int kRegisters>
void release_registers() {}
template <int kRegisters>
void claim_registers() {}
inline void wait_for_previous_kernel() {}
inline void launch_next_kernel() {}

}  // namespace kvsieve::cuda
