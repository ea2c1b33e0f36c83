// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing tensor elements by index, as the shapes in the public headers spell them.
#pragma once

#include <cstdint>
#include <variant>

#include "core/numeric.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve::reference {

/// Element offset of an index; trailing indices that are left out are 0.
template <class... Index>
std::int64_t offset_of(const Tensor& tensor, Index... index) {
  std::int64_t offset = 0;
  int dimension = 0;
  ((offset += static_cast<std::int64_t>(index) * tensor.stride[dimension++]), ...);
  return offset;
}

template <class... Index>
std::int64_t integer_at(const Tensor& tensor, Index... index) {
  const std::int64_t offset = offset_of(tensor, index...);
  if (tensor.dtype == DType::i64) return static_cast<const std::int64_t*>(tensor.data)[offset];
  return static_cast<const std::int32_t*>(tensor.data)[offset];
}

inline double number_at(const Tensor& tensor, std::int64_t offset) {
  return load_as_float(tensor.data, tensor.dtype, offset);
}

inline void store_at(const Tensor& tensor, std::int64_t offset, double value) {
  store_from_float(tensor.data, tensor.dtype, offset, static_cast<float>(value));
}

/// `value` as it reads back from a tensor of type `dtype`.
inline double rounded_to(DType dtype, double value) {
  float storage = 0.0f;
  store_from_float(&storage, dtype, 0, static_cast<float>(value));
  return load_as_float(&storage, dtype, 0);
}

inline double scalar_value(const Scalar& scalar) {
  if (const float* value = std::get_if<float>(&scalar)) return *value;
  return number_at(std::get<Tensor>(scalar), 0);
}

inline bool in_range(std::int64_t value, std::int64_t end) { return value >= 0 && value < end; }

}  // namespace kvsieve::reference
