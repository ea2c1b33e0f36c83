// SPDX-License-Identifier: Apache-2.0
//
// Random contents made on the device, where a cache of tens of gigabytes takes a fraction of a second.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kvsieve/tensor.hpp"

namespace kvsieve::bench {

/// Fills a row-major tensor (bf16, f16 or f8_e4m3) of the current device with numbers that are close to standard
/// normal: a function of the seed and the element's index.
void fill_normal(const Tensor& tensor, std::uint64_t seed, cudaStream_t stream);

/// Fills memory with random bits, which no hardware can compress. `bytes` is a multiple of 8.
void fill_bits(void* memory, std::size_t bytes, std::uint64_t seed, cudaStream_t stream);

}  // namespace kvsieve::bench
