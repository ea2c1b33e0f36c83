// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "dlpack.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"
#include "tensor_argument.hpp"

namespace kvsieve::python {

/// The array library of a call's first argument: it allocates what the call returns, and its stream is the call's.
class Framework {
 public:
  explicit Framework(nanobind::handle like);

  /// A new array and its view.
  std::pair<nanobind::object, Tensor> empty(DType dtype, std::span<const std::int64_t> shape, Device device) const;
  /// `bytes` of memory on a CUDA device, in the order of the current stream.
  std::pair<nanobind::object, void*> bytes(std::int64_t bytes, Device device) const;

  /// The stream of a call: `stream` (a number, or an object of torch, CuPy or the `__cuda_stream__` protocol), or the
  /// library's current one when it is None. Null on the CPU.
  void* stream(nanobind::handle stream, Device device) const;

 private:
  std::pair<nanobind::object, dlpack::Tensor> allocate(dlpack::DataType dtype, const char* dtype_name,
                                                       std::span<const std::int64_t> shape, Device device) const;

  nanobind::handle like_;
  const dlpack::ExchangeApi* api_;
};

/// An output that is given (an array), wanted (True: allocated by the library of the inputs) or not (None, False).
class OutputArgument {
 public:
  /// `shape` is that of a new array; nothing is allocated when it is empty, which leaves it to the call's own checks to
  /// say which input is wrong.
  OutputArgument(nanobind::handle object, const char* name, const Framework& framework, DType dtype,
                 std::span<const std::int64_t> shape, Device device);
  const Tensor& tensor() const noexcept { return tensor_; }
  /// What the call returns: the given or new array, None.
  nanobind::object object() const { return object_; }

 private:
  nanobind::object object_;
  std::optional<TensorArgument> given_;
  Tensor tensor_;
};

/// The workspace of a call: the caller's array, or memory of our own when that is None. On the CPU it is kept per
/// thread for the next call (a call is over when it returns); on CUDA it comes from the array library, whose allocator
/// knows about streams and graph capture.
class WorkspaceArgument {
 public:
  WorkspaceArgument(nanobind::handle object, std::size_t required, const Framework& framework, Device device);
  Workspace workspace() const noexcept { return workspace_; }

 private:
  std::optional<ArrayView> given_;
  nanobind::object memory_;
  Workspace workspace_;
};

}  // namespace kvsieve::python
