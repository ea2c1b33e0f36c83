// SPDX-License-Identifier: Apache-2.0
//
// Scalar conversions between the storage types and float, exact or rounded to nearest even. Plain and slow on purpose:
// the reference, the tests and the case generator use them, the SIMD kernels have their own.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kvsieve/tensor.hpp"

namespace kvsieve {

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1F;
  const std::uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (magnitude < 6.103515625e-05f) {  // subnormal: a multiple of 2^-24, rounded by the FPU's nearest-even
    const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, 24)));
    return static_cast<std::uint16_t>(sign | steps);
  }
  const std::uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + ((bits >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
}

/// OCP FP8 E4M3 (no infinities, S.1111.111 is NaN).
inline float f8_e4m3_to_float(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 0xF;
  const int mantissa = bits & 0x7;
  if (exponent == 0xF && mantissa == 0x7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

/// Rounds to nearest even; magnitudes past 448 saturate (as engines do when they quantise a KV cache), NaN stays NaN.
inline std::uint8_t float_to_f8_e4m3(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7F);
  const float magnitude = std::fmin(std::fabs(value), 448.0f);
  if (magnitude < 0.015625f) {  // subnormal: a multiple of 2^-9; 8 steps carry into the first normal
    return static_cast<std::uint8_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(magnitude, 9))));
  }
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + 0x7FFFF + ((bits >> 20) & 1);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120 << 3)));
}

/// Element `index` of an array of floating-point type `dtype`, as float (every one of them is exact in float).
inline float load_as_float(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::bf16:
      return bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f16:
      return f16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f8_e4m3:
      return f8_e4m3_to_float(static_cast<const std::uint8_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

/// Stores a float rounded to `dtype`.
inline void store_from_float(void* data, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[index] = float_to_bf16(value);
      return;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[index] = float_to_f16(value);
      return;
    case DType::f8_e4m3:
      static_cast<std::uint8_t*>(data)[index] = float_to_f8_e4m3(value);
      return;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

}  // namespace kvsieve
