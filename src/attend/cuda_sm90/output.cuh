// SPDX-License-Identifier: Apache-2.0
//
// Writing output rows as pairs of 16-bit elements.
#pragma once

#include "cuda/convert.cuh"

namespace kvsieve::cuda::sm90 {

/// Rounds two neighbouring elements and stores them as one word.
template <class T>
__device__ __forceinline__ void store_pair(T* to, float first, float second) {
  *reinterpret_cast<std::uint32_t*>(to) = pack2<T>(first, second);
}

}  // namespace kvsieve::cuda::sm90
