// SPDX-License-Identifier: Apache-2.0
//
// Host memory for tensors, in every memory layout that the API allows. Fresh memory is poisoned: every byte is 0xFF,
// which is NaN in each floating-point type and -1 in the integer types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvsieve/tensor.hpp"

namespace kvsieve::io {

/// A tensor and the memory behind it.
struct OwnedTensor {
  Tensor view;
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;  ///< of the memory, gaps included
};

/// Memory order of a KV cache, whose tensors are flat [tokens, heads, D] or paged [pages, heads, tokens, D].
enum class KvLayout {
  nhd,         ///< token before head; row-major for the flat form
  hnd,         ///< head before token; row-major for the paged form
  packed_nhd,  ///< as nhd, K and V being the two halves of a last dimension of 2 D
  packed_hnd,  ///< as hnd, likewise
};

/// "nhd", "hnd", "packed_nhd", "packed_hnd".
std::string_view kv_layout_name(KvLayout layout) noexcept;
/// The order in which a row-major tensor of this rank is stored.
constexpr KvLayout row_major_layout(int kv_rank) noexcept { return kv_rank == 3 ? KvLayout::nhd : KvLayout::hnd; }
constexpr bool is_packed(KvLayout layout) noexcept {
  return layout == KvLayout::packed_nhd || layout == KvLayout::packed_hnd;
}

/// Row-major view of existing memory. The shape has at most Tensor::max_rank sizes and no overflowing product.
Tensor row_major(const void* data, DType dtype, std::span<const std::int64_t> shape);

/// 64-byte aligned, poisoned. From 2 MiB on aligned to that, and in huge pages where the system gives them.
std::shared_ptr<std::byte> allocate(std::size_t bytes);

/// Row-major but for `gap` unused elements after each row, a row being the last `row_rank` dimensions.
OwnedTensor make_tensor(DType dtype, std::span<const std::int64_t> shape, int row_rank = 1, std::int64_t gap = 0);

/// K and V in one piece of memory or two, laid out as asked. The shape has rank 3 or 4.
struct KvTensors {
  OwnedTensor k;
  OwnedTensor v;
};
KvTensors make_kv_tensors(DType dtype, std::span<const std::int64_t> shape, KvLayout layout);

/// Copies all elements between tensors of equal dtype and shape whose last dimension is contiguous.
void copy_elements(const Tensor& from, const Tensor& to);

/// True while every byte of the memory that belongs to no element still has its poison.
bool gaps_intact(const OwnedTensor& tensor);

/// Calls `row(offset)` for the element offset of each run along the last dimension, in row-major order.
template <class Row>
void for_each_run(const Tensor& tensor, Row&& row) {
  std::int64_t index[Tensor::max_rank] = {};
  std::int64_t offset = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return;
  }
  while (true) {
    row(offset);
    int i = tensor.rank - 2;
    for (; i >= 0; --i) {
      offset += tensor.stride[i];
      if (++index[i] < tensor.shape[i]) break;
      offset -= tensor.stride[i] * tensor.shape[i];
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

}  // namespace kvsieve::io
