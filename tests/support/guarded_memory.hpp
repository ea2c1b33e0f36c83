// SPDX-License-Identifier: Apache-2.0
//
// Tensors at the edge of a protected page: an access outside them kills the test.
#pragma once

#include <cstddef>
#include <vector>

#include "kvsieve/tensor.hpp"

namespace kvsieve::test {

/// Which end of a tensor touches the protected page.
enum class Guard { after, before };

class GuardedMemory {
 public:
  explicit GuardedMemory(Guard guard) : guard_(guard) {}
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  /// Copy of a tensor with its strides. Memory between its elements, and the rest of its pages, is 0xFF: NaN in every
  /// floating-point type.
  Tensor copy(const Tensor& tensor);
  /// Makes everything read-only.
  void seal();

 private:
  struct Mapping {
    void* begin;
    std::size_t bytes;
    void* data;
    std::size_t data_bytes;
  };
  std::byte* allocate(std::size_t bytes);

  Guard guard_;
  std::vector<Mapping> mappings_;
};

}  // namespace kvsieve::test
