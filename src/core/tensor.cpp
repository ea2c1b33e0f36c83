// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/tensor.hpp"

#include <algorithm>
#include <limits>

namespace kvsieve {
namespace {

void set_shape(Tensor& tensor, std::initializer_list<std::int64_t> shape) {
  if (shape.size() > Tensor::max_rank) {
    throw ArgumentError("shape", std::to_string(shape.size()) + " dimensions",
                        "at most " + std::to_string(Tensor::max_rank));
  }
  tensor.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape.begin());
}

void set_row_major_strides(Tensor& tensor) {
  std::int64_t next = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.stride[i] = next;
    if (__builtin_mul_overflow(next, tensor.shape[i], &next)) next = std::numeric_limits<std::int64_t>::max();
  }
}

std::string list(const std::array<std::int64_t, Tensor::max_rank>& values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f8_e4m3:
      return "f8_e4m3";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::none:
      break;
  }
  return "none";
}

Tensor::Tensor(const void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in, Device device_in)
    : data(const_cast<void*>(data_in)), dtype(dtype_in), device(device_in) {
  set_shape(*this, shape_in);
  set_row_major_strides(*this);
}

Tensor::Tensor(const void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in,
               std::initializer_list<std::int64_t> stride_in, Device device_in)
    : data(const_cast<void*>(data_in)), dtype(dtype_in), device(device_in) {
  set_shape(*this, shape_in);
  if (stride_in.size() != shape_in.size()) {
    throw ArgumentError("stride", std::to_string(stride_in.size()) + " strides",
                        std::to_string(shape_in.size()) + ", one per dimension");
  }
  std::copy(stride_in.begin(), stride_in.end(), stride.begin());
}

std::int64_t Tensor::numel() const noexcept {
  std::int64_t count = 1;
  bool overflow = false;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] <= 0) return 0;
    overflow = overflow || __builtin_mul_overflow(count, shape[i], &count);
  }
  return overflow ? std::numeric_limits<std::int64_t>::max() : count;
}

bool Tensor::is_contiguous() const noexcept {
  if (numel() == 0) return true;
  std::int64_t next = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (stride[i] != next) return false;
    if (__builtin_mul_overflow(next, shape[i], &next)) return false;
  }
  return true;
}

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "not given";
  std::string text = std::string(dtype_name(tensor.dtype)) + list(tensor.shape, tensor.rank);
  if (!tensor.is_contiguous()) text += " strides " + list(tensor.stride, tensor.rank);
  return text + " on " + to_string(tensor.device);
}

}  // namespace kvsieve
