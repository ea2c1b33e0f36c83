// SPDX-License-Identifier: Apache-2.0
//
// Names that nvcc knows in device code, for a C++ compiler that reads it (included before everything else).
#pragma once

// Device code is for nvcc to warn of.
#pragma GCC diagnostic ignored "-Wshadow"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "emulator/emulator.hpp"

#undef __global__
#undef __device__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
/// Static shared memory: thread blocks of kernels that use it run one after the other.
#define __shared__ static

#define threadIdx ::kvsieve::emulator::thread_index()
#define blockIdx ::kvsieve::emulator::block_index()
#define blockDim ::kvsieve::emulator::block_size()
#define gridDim ::kvsieve::emulator::grid_size()

template <class A, class B>
auto min(A a, B b) {
  using Both = std::common_type_t<A, B>;
  return std::min<Both>(a, b);
}
template <class A, class B>
auto max(A a, B b) {
  using Both = std::common_type_t<A, B>;
  return std::max<Both>(a, b);
}

inline void __syncthreads() { kvsieve::emulator::sync_threads(); }
inline void __syncwarp() { kvsieve::emulator::exchange(0); }

namespace kvsieve::emulator {

inline unsigned lane() { return thread_index().x % 32; }
template <class T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<std::uint32_t>(value);
}
template <class T>
T from_word(std::uint64_t word) {
  return std::bit_cast<T>(static_cast<std::uint32_t>(word));
}
inline void require_full(unsigned mask) {
  if (mask != 0xFFFFFFFFu) fail("a warp operation of some lanes only");
}
template <class T, class Combine>
T reduce(unsigned mask, T value, const Combine& combine) {
  require_full(mask);
  const std::uint64_t* const words = exchange(to_word(value));
  T result = from_word<T>(words[0]);
  for (int i = 1; i < 32; ++i) result = combine(result, from_word<T>(words[i]));
  return result;
}

}  // namespace kvsieve::emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  kvsieve::emulator::require_full(mask);
  return kvsieve::emulator::from_word<T>(kvsieve::emulator::exchange(kvsieve::emulator::to_word(value))[source & 31]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other) {
  return __shfl_sync(mask, value, static_cast<int>(kvsieve::emulator::lane()) ^ other);
}
inline bool __any_sync(unsigned mask, bool value) {
  return kvsieve::emulator::reduce(mask, value ? 1u : 0u, [](unsigned a, unsigned b) { return a | b; }) != 0;
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return kvsieve::emulator::reduce(mask, value, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return kvsieve::emulator::reduce(mask, value, [](unsigned a, unsigned b) { return a & b; });
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return kvsieve::emulator::reduce(mask, value, [](int a, int b) { return std::min(a, b); });
}

namespace kvsieve::emulator {

/// Replaces *to by change(*to) and returns the old value. Between any two of these the other threads may run: loops
/// that spin on one are fair.
template <class T, class Change>
T update(T* to, const Change& change) {
  yield();
  const T old = *to;
  *to = change(old);
  return old;
}

}  // namespace kvsieve::emulator

template <class T, class U>
T atomicOr(T* to, U value) {
  return kvsieve::emulator::update(to, [=](T old) { return static_cast<T>(old | value); });
}
template <class T, class U>
T atomicMin(T* to, U value) {
  return kvsieve::emulator::update(to, [=](T old) { return std::min<T>(old, value); });
}
template <class T, class U>
T atomicExch(T* to, U value) {
  return kvsieve::emulator::update(to, [=](T) { return static_cast<T>(value); });
}
template <class T, class U>
T atomicCAS(T* to, U expected, U value) {
  return kvsieve::emulator::update(
      to, [=](T old) { return old == static_cast<T>(expected) ? static_cast<T>(value) : old; });
}

inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1; }
inline float __expf(float x) { return std::exp(x); }
template <class T>
T __ldg(const T* address) {
  return *address;
}
