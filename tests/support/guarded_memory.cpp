// SPDX-License-Identifier: Apache-2.0
#include "support/guarded_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "io/tensor_storage.hpp"

namespace kvsieve::test {

GuardedMemory::~GuardedMemory() {
  for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
}

std::byte* GuardedMemory::allocate(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t data_bytes = (bytes + page - 1) / page * page;
  const std::size_t total = data_bytes + page;
  void* const begin = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  std::byte* const data = static_cast<std::byte*>(begin) + (guard_ == Guard::before ? page : 0);
  mappings_.push_back({begin, total, data, data_bytes});
  if (mprotect(data, data_bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  std::memset(data, 0xFF, data_bytes);
  return guard_ == Guard::before ? data : data + data_bytes - bytes;
}

Tensor GuardedMemory::copy(const Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return tensor;
  std::int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i) last += (tensor.shape[i] - 1) * tensor.stride[i];
  Tensor copy = tensor;
  copy.data = allocate(static_cast<std::size_t>(last + 1) * dtype_size(tensor.dtype));
  io::copy_elements(tensor, copy);
  return copy;
}

void GuardedMemory::seal() {
  for (const Mapping& mapping : mappings_) mprotect(mapping.data, mapping.data_bytes, PROT_READ);
}

}  // namespace kvsieve::test
