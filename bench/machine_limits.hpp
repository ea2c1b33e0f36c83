// SPDX-License-Identifier: Apache-2.0
//
// What the machine can do: the yardsticks for the CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsieve::bench {

/// A matrix product by OpenBLAS in float32.
struct SgemmRate {
  double flops_per_second = 0;
  int num_threads = 0;   ///< that OpenBLAS used; it may have a maximum
  char kernel[32] = {};  ///< its name for the CPU whose kernels it picked
};
/// Best of `repeats` products of two size x size matrices of random numbers. OpenBLAS is left with one thread.
SgemmRate measure_sgemm(int num_threads, std::int64_t size, int repeats);

/// Bytes per second, best of `repeats` passes of all threads over one buffer in huge pages, which they sum up.
double measure_read(int num_threads, std::size_t bytes, int repeats);

}  // namespace kvsieve::bench
