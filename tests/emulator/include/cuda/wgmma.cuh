// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/wgmma.cuh for the emulator: the products read shared memory through descriptors as the tensor cores do.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "emulator/emulator.hpp"

namespace kvsieve::cuda::wgmma {

struct Descriptor {
  std::uint32_t low;
  explicit Descriptor(std::uint32_t shared_address, std::uint32_t panel_bytes = 16)
      : low((panel_bytes >> 4) << 16 | (shared_address & 0x3FFFF) >> 4) {}
  Descriptor uniform() const { return *this; }
  Descriptor plus(std::uint32_t bytes) const {
    Descriptor moved = *this;
    moved.low += bytes >> 4;
    return moved;
  }
  std::uint32_t start() const { return (low & 0x3FFF) << 4; }
  std::uint32_t panel_bytes() const { return (low >> 16) << 4; }
};

inline void fence() {}
inline void commit() { emulator::commit_products(); }
template <int kPending>
void wait() {
  emulator::wait_products(kPending);
}
template <int kPending>
void wait_again() {
  emulator::wait_products(kPending);
}
template <int kCount>
void pin(float (&)[kCount]) {}

/// Element at an address before the 128-byte swizzle.
template <class T>
float element(const unsigned char* shared, std::uint32_t address) {
  return static_cast<float>(*reinterpret_cast<const T*>(shared + (address ^ (address >> 7 & 7) << 4)));
}

/// Row and column of accumulator i of a thread.
inline std::array<int, 2> place(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, i / 4 * 8 + thread % 4 * 2 + i % 2};
}

template <class T, int kCount>
void multiply(float (&d)[kCount], Descriptor a, Descriptor b, bool accumulate) {
  const unsigned char* const shared = emulator::block_memory();
  emulator::start_product(d, [=](void* const* parts) {
    constexpr int columns = kCount * 2;
    static thread_local float left[64][16], right[columns][16];
    for (std::uint32_t r = 0; r < 64; ++r) {
      for (std::uint32_t k = 0; k < 16; ++k) left[r][k] = element<T>(shared, a.start() + r * 128 + k * 2);
    }
    for (std::uint32_t n = 0; n < columns; ++n) {
      for (std::uint32_t k = 0; k < 16; ++k) right[n][k] = element<T>(shared, b.start() + n * 128 + k * 2);
    }
    for (int t = 0; t < 128; ++t) {
      auto* const out = static_cast<float*>(parts[t]);
      for (int i = 0; i < kCount; ++i) {
        const auto [row, column] = place(t, i);
        float sum = accumulate ? out[i] : 0.0f;
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[column][k];
        out[i] = sum;
      }
    }
  });
}

template <class T, int kCount>
void multiply_registers(float (&d)[kCount], const std::uint32_t (&a)[4], Descriptor b) {
  // Registers are read when the product is done, as on the device: who changes them before shows.
  struct Part {
    float* out;
    const std::uint32_t* a;
  };
  const unsigned char* const shared = emulator::block_memory();
  auto* const part = new Part{d, a};  // until the product is done
  emulator::start_product(part, [=](void* const* parts) {
    constexpr int columns = kCount * 2;
    static thread_local float left[64][16], right[16][columns];
    for (int t = 0; t < 128; ++t) {
      const std::uint32_t* const words = static_cast<const Part*>(parts[t])->a;
      for (int w = 0; w < 4; ++w) {
        for (int half = 0; half < 2; ++half) {
          const auto bits = static_cast<std::uint16_t>(words[w] >> 16 * half);
          left[t / 32 * 16 + t % 32 / 4 + w % 2 * 8][w / 2 * 8 + t % 4 * 2 + half] =
              static_cast<float>(*reinterpret_cast<const T*>(&bits));
        }
      }
    }
    for (std::uint32_t k = 0; k < 16; ++k) {
      for (std::uint32_t n = 0; n < columns; ++n) {
        right[k][n] = element<T>(shared, b.start() + n / 64 * b.panel_bytes() + k * 128 + n % 64 * 2);
      }
    }
    for (int t = 0; t < 128; ++t) {
      const auto* const mine = static_cast<const Part*>(parts[t]);
      for (int i = 0; i < kCount; ++i) {
        const auto [row, column] = place(t, i);
        for (int k = 0; k < 16; ++k) mine->out[i] += left[row][k] * right[k][column];
      }
      delete mine;
    }
  });
}

}  // namespace kvsieve::cuda::wgmma
