// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "bench/random_fill.hpp"
#include "cuda/check.hpp"

namespace kvsieve::bench {
namespace {

constexpr int threads = 256;
constexpr int blocks = 132 * 16;

/// A well mixed number for each counter (the finaliser of splitmix64).
__device__ std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  return mix(mix(seed) + 0x9E3779B97F4A7C15ull * (index + 1));
}

/// The sum of four uniform 16-bit numbers, scaled to mean 0 and variance 1: within +-3.5.
__device__ float normal(std::uint64_t bits) {
  const int sum = static_cast<int>(bits & 0xFFFF) + static_cast<int>(bits >> 16 & 0xFFFF) +
                  static_cast<int>(bits >> 32 & 0xFFFF) + static_cast<int>(bits >> 48);
  constexpr float mean = 4 * 65535 / 2;
  constexpr float deviation = 37837.2f;  // sqrt(4 * 65536^2 / 12)
  return (static_cast<float>(sum) - mean) / deviation;
}

struct ToBf16 {
  __device__ __nv_bfloat16 operator()(float value) const { return __float2bfloat16_rn(value); }
};
struct ToF16 {
  __device__ __half operator()(float value) const { return __float2half_rn(value); }
};
struct ToFp8 {
  __device__ __nv_fp8_storage_t operator()(float value) const {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  }
};

template <class T, class Convert>
__global__ void fill_normal_kernel(T* data, std::int64_t count, std::uint64_t seed, Convert convert) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = convert(normal(random_bits(seed, static_cast<std::uint64_t>(i))));
  }
}

__global__ void fill_bits_kernel(std::uint64_t* data, std::int64_t count, std::uint64_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = random_bits(seed, static_cast<std::uint64_t>(i));
  }
}

}  // namespace

void fill_normal(const Tensor& tensor, std::uint64_t seed, cudaStream_t stream) {
  const std::int64_t count = tensor.numel();
  switch (tensor.dtype) {
    case DType::bf16:
      fill_normal_kernel<<<blocks, threads, 0, stream>>>(static_cast<__nv_bfloat16*>(tensor.data), count, seed,
                                                         ToBf16{});
      break;
    case DType::f16:
      fill_normal_kernel<<<blocks, threads, 0, stream>>>(static_cast<__half*>(tensor.data), count, seed, ToF16{});
      break;
    case DType::f8_e4m3:
      fill_normal_kernel<<<blocks, threads, 0, stream>>>(static_cast<__nv_fp8_storage_t*>(tensor.data), count, seed,
                                                         ToFp8{});
      break;
    default:
      throw ArgumentError("tensor", std::string(dtype_name(tensor.dtype)), "bf16, f16 or f8_e4m3");
  }
  cuda::check_launch("fill_normal");
}

void fill_bits(void* memory, std::size_t bytes, std::uint64_t seed, cudaStream_t stream) {
  fill_bits_kernel<<<blocks, threads, 0, stream>>>(static_cast<std::uint64_t*>(memory),
                                                   static_cast<std::int64_t>(bytes / 8), seed);
  cuda::check_launch("fill_bits");
}

}  // namespace kvsieve::bench
