// SPDX-License-Identifier: Apache-2.0
//
// Conversions between storage types on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "core/problem.hpp"

namespace kvsieve::cuda {

/// Two FP8 E4M3 numbers as two bf16 or f16, exact in both.
template <class T>
__device__ __forceinline__ std::uint32_t widen_f8x2(std::uint16_t pair) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
  const __half2 halves = raw;
  if constexpr (std::is_same_v<T, __half>) {
    return *reinterpret_cast<const std::uint32_t*>(&halves);
  } else {
    const __nv_bfloat162 wide = __float22bfloat162_rn(__half22float2(halves));
    return *reinterpret_cast<const std::uint32_t*>(&wide);
  }
}

/// Two floats rounded to bf16 or f16; `low` is the first element.
template <class T>
__device__ __forceinline__ std::uint32_t pack2(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

__device__ __forceinline__ float load_float(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
    case DType::f16:
      return __half2float(static_cast<const __half*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

__device__ __forceinline__ void store_float(void* data, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::bf16:
      static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
      return;
    case DType::f16:
      static_cast<__half*>(data)[index] = __float2half_rn(value);
      return;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

/// Stores an element of an output row: scaled, and with a gate out = round(attention) * sigmoid(gate).
__device__ __forceinline__ void store_output(const AttentionProblem& problem, std::int64_t row, std::int64_t head,
                                             std::int64_t dim, float value) {
  const RowHeads& out = problem.out;
  const std::int64_t index = row * out.stride_row + head * out.stride_head + dim;
  store_float(out.data, out.dtype, index, value);
  if (!problem.gate.defined()) return;
  const float gate =
      load_float(problem.gate.data, out.dtype, row * problem.gate.stride_row + head * problem.gate.stride_head + dim);
  store_float(out.data, out.dtype, index, load_float(out.data, out.dtype, index) / (1.0f + __expf(-gate)));
}

/// Stores an lse-like value when the output is asked for.
__device__ __forceinline__ void store_lse(const RowHeads& to, std::int64_t row, std::int64_t head, float value) {
  if (to.defined()) static_cast<float*>(to.data)[row * to.stride_row + head * to.stride_head] = value;
}

}  // namespace kvsieve::cuda
