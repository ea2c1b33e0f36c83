// SPDX-License-Identifier: Apache-2.0
//
// Python objects as tensors, without a copy.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string_view>

#include "dlpack.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve::python {

/// The exchange functions of a type, null when its library has none. Looked up once per type.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);

/// True for what TensorArgument takes.
bool is_tensor(nanobind::handle object);

enum class Access { read, write };

/// An argument as a DLPack tensor, whatever its dtype. Borrows: valid while this object and the Python object live.
///
/// In the order of preference: the exchange functions of the object's library (torch 2.10 and later), the attributes of
/// an older torch tensor, the buffer of a NumPy array (whose own DLPack export knows no ml_dtypes), `__dlpack__`.
class ArrayView {
 public:
  /// Throws ArgumentTypeError for an object that is no array, ArgumentError for one that cannot be shared.
  ArrayView(nanobind::handle object, const char* name, Access access);
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  const dlpack::Tensor& dlpack() const noexcept { return view_; }

 private:
  void from_torch_attributes(nanobind::handle tensor);
  void from_buffer(nanobind::handle object, Access access);
  void from_capsule(nanobind::handle object, Access access);
  /// Copies sizes into arrays of this object and points the view at them.
  void set_shape(int rank);

  const char* name_;
  dlpack::Tensor view_{};
  std::array<std::int64_t, Tensor::max_rank> shape_;
  std::array<std::int64_t, Tensor::max_rank> strides_;
  struct Buffer {
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (raw.obj != nullptr) PyBuffer_Release(&raw);
    }
    Py_buffer raw{};
  } buffer_;
  nanobind::object owner_;
};

/// An argument of a call. None is an argument that is not given.
class TensorArgument {
 public:
  TensorArgument(nanobind::handle object, const char* name, Access access = Access::read);
  const Tensor& tensor() const noexcept { return tensor_; }

 private:
  std::optional<ArrayView> view_;
  Tensor tensor_;
};

/// A number, or a tensor of one element that is read when the call executes. None gives the default.
class ScalarArgument {
 public:
  ScalarArgument(nanobind::handle object, const char* name, float if_none);
  const Scalar& scalar() const noexcept { return scalar_; }
  bool given() const noexcept { return given_; }

 private:
  TensorArgument tensor_;
  Scalar scalar_;
  bool given_;
};

/// Python numbers and flags. Each throws ArgumentTypeError.
float number(nanobind::handle object, const char* name);
std::int64_t integer(nanobind::handle object, const char* name);
bool flag(nanobind::handle object, const char* name);
/// None is `if_none`.
std::int64_t integer_or(nanobind::handle object, const char* name, std::int64_t if_none);
/// Valid while the object lives.
std::string_view text(nanobind::handle object, const char* name);

/// The kvsieve view of a DLPack tensor. Throws ArgumentError in the argument's name.
Tensor as_tensor(const dlpack::Tensor& tensor, const char* name);

}  // namespace kvsieve::python
