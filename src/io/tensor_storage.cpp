// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_storage.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace kvsieve::io {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr int poison = 0xFF;

/// Product of sizes, counting empty dimensions as 1, so that strides of empty tensors are as large as any.
std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, std::max<std::int64_t>(b, 1), &product)) throw std::bad_alloc();
  return product;
}

/// Elements from the first to the last one, both included; 0 when there are none.
std::int64_t extent(const Tensor& tensor) {
  std::int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return 0;
    std::int64_t span = 0;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &span) ||
        __builtin_add_overflow(last, span, &last)) {
      throw std::bad_alloc();
    }
  }
  return last + 1;
}

/// Memory for a view whose strides are set.
OwnedTensor own(Tensor view) {
  const std::int64_t elements = extent(view);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::int64_t>(dtype_size(view.dtype)), &bytes)) {
    throw std::bad_alloc();
  }
  OwnedTensor tensor{view, allocate(static_cast<std::size_t>(bytes)), static_cast<std::size_t>(bytes)};
  tensor.view.data = tensor.memory.get();
  return tensor;
}

}  // namespace

std::string_view kv_layout_name(KvLayout layout) noexcept {
  switch (layout) {
    case KvLayout::nhd:
      return "nhd";
    case KvLayout::hnd:
      return "hnd";
    case KvLayout::packed_nhd:
      return "packed_nhd";
    case KvLayout::packed_hnd:
      return "packed_hnd";
  }
  return "";
}

Tensor row_major(const void* data, DType dtype, std::span<const std::int64_t> shape) {
  Tensor tensor;
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    stride = checked_product(stride, shape[i]);
  }
  return tensor;
}

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (rounded < bytes) throw std::bad_alloc();
  // Engines keep their KV caches in huge pages, and so do the benchmarks. Where the system has none, nothing changes.
  const bool huge = rounded >= huge_page;
  void* memory = nullptr;  // aligned_alloc would ask for a size that is a multiple of the alignment
  if (posix_memalign(&memory, huge ? huge_page : alignment, rounded) != 0) throw std::bad_alloc();
  if (huge) madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, poison, rounded);
  return {static_cast<std::byte*>(memory), [](std::byte* pointer) { std::free(pointer); }};
}

OwnedTensor make_tensor(DType dtype, std::span<const std::int64_t> shape, int row_rank, std::int64_t gap) {
  Tensor view = row_major(nullptr, dtype, shape);
  const int last_outer = view.rank - row_rank - 1;
  if (gap != 0 && last_outer >= 0) {
    std::int64_t stride = 0;
    if (__builtin_add_overflow(view.stride[last_outer], gap, &stride)) throw std::bad_alloc();
    for (int i = last_outer; i >= 0; --i) {
      view.stride[i] = stride;
      stride = checked_product(stride, view.shape[i]);
    }
  }
  return own(view);
}

KvTensors make_kv_tensors(DType dtype, std::span<const std::int64_t> shape, KvLayout layout) {
  Tensor view = row_major(nullptr, dtype, shape);
  const bool packed = is_packed(layout);
  const bool head_first = layout == KvLayout::hnd || layout == KvLayout::packed_hnd;
  const int head = 1;
  const int token = view.rank == 3 ? 0 : 2;
  const int inner = head_first ? token : head;
  const int outer = head_first ? head : token;
  view.stride[inner] = checked_product(packed ? 2 : 1, view.shape[view.rank - 1]);
  view.stride[outer] = checked_product(view.stride[inner], view.shape[inner]);
  if (view.rank == 4) view.stride[0] = checked_product(view.stride[outer], view.shape[outer]);
  if (!packed) return {own(view), own(view)};

  const std::int64_t half = view.shape[view.rank - 1];
  Tensor both = view;  // the last dimension holds K, then V
  both.shape[both.rank - 1] = checked_product(2, half);
  KvTensors result{own(both), {}};
  result.k.view.shape[view.rank - 1] = half;
  result.v = result.k;
  result.v.view.data = result.k.memory.get() + static_cast<std::size_t>(half) * dtype_size(dtype);
  return result;
}

void copy_elements(const Tensor& from, const Tensor& to) {
  const std::size_t size = dtype_size(from.dtype);
  const std::size_t run = size * static_cast<std::size_t>(from.rank == 0 ? 1 : from.shape[from.rank - 1]);
  std::vector<std::int64_t> targets;
  auto* const target = static_cast<std::byte*>(to.data);
  const auto* const source = static_cast<const std::byte*>(from.data);
  for_each_run(to, [&](std::int64_t offset) { targets.push_back(offset); });
  std::size_t i = 0;
  for_each_run(from, [&](std::int64_t offset) {
    std::memcpy(target + targets[i++] * static_cast<std::int64_t>(size),
                source + offset * static_cast<std::int64_t>(size), run);
  });
}

bool gaps_intact(const OwnedTensor& tensor) {
  const std::size_t size = dtype_size(tensor.view.dtype);
  const Tensor& view = tensor.view;
  const std::size_t run = size * static_cast<std::size_t>(view.rank == 0 ? 1 : view.shape[view.rank - 1]);
  const auto* const bytes = tensor.memory.get();
  std::size_t done = 0;
  bool intact = true;
  for_each_run(view, [&](std::int64_t offset) {
    const std::size_t begin = static_cast<std::size_t>(offset) * size;
    intact = intact && std::all_of(bytes + done, bytes + begin, [](std::byte b) { return b == std::byte{poison}; });
    done = begin + run;
  });
  return intact;
}

}  // namespace kvsieve::io
