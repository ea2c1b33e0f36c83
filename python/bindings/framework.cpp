// SPDX-License-Identifier: Apache-2.0
#include "framework.hpp"

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

#include "errors.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

/// Python's names of the dtypes: those of NumPy, ml_dtypes and torch.
const char* python_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::f8_e4m3:
      return "float8_e4m3fn";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::none:
      break;
  }
  return "";
}

void set_allocation_error(void*, const char*, const char* message) { PyErr_SetString(PyExc_MemoryError, message); }

/// Memory of a thread for calls on the CPU. Grows as needed; what is larger than `most_kept` is not kept.
class ThreadMemory {
 public:
  static constexpr std::size_t most_kept = std::size_t{256} << 20;

  void* at_least(std::size_t bytes) {
    if (bytes_ < bytes || bytes_ > most_kept) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(std::malloc(bytes));
      if (memory_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

/// `kvsieve._arrays`: what this file leaves to Python, for libraries without exchange functions.
nb::object arrays(const char* function) {
  static PyObject* const module = nb::module_::import_("kvsieve._arrays").release().ptr();
  return nb::handle(module).attr(function);
}

}  // namespace

Framework::Framework(nb::handle like) : like_(like), api_(exchange_api(Py_TYPE(like.ptr()))) {}

std::pair<nb::object, dlpack::Tensor> Framework::allocate(dlpack::DataType dtype, const char* dtype_name,
                                                          std::span<const std::int64_t> shape, Device device) const {
  if (api_ == nullptr) {
    nb::list sizes;
    for (const std::int64_t size : shape) sizes.append(size);
    nb::object array = arrays("empty")(like_, nb::tuple(sizes), dtype_name);
    const ArrayView view(array, "out", Access::write);
    return {std::move(array), view.dlpack()};
  }
  dlpack::Tensor prototype{};
  prototype.device.device_type =
      device.type == DeviceType::cpu ? kvsieve::dlpack::device_cpu : kvsieve::dlpack::device_cuda;
  prototype.device.device_id = device.index;
  prototype.ndim = static_cast<std::int32_t>(shape.size());
  prototype.dtype = dtype;
  prototype.shape = const_cast<std::int64_t*>(shape.data());
  dlpack::VersionedTensor* managed = nullptr;
  if (api_->allocate(&prototype, &managed, nullptr, set_allocation_error) != 0) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_MemoryError, "the array library could not allocate");
    throw nb::python_error();
  }
  const dlpack::Tensor view = managed->tensor;
  void* object = nullptr;
  if (api_->to_object(managed, &object) != 0) throw nb::python_error();
  return {nb::steal(static_cast<PyObject*>(object)), view};
}

std::pair<nb::object, Tensor> Framework::empty(DType dtype, std::span<const std::int64_t> shape, Device device) const {
  dlpack::DataType code{};
  Tensor model(nullptr, dtype, {});
  code = to_dlpack<dlpack::Tensor>(model).dtype;
  auto [object, view] = allocate(code, python_name(dtype), shape, device);
  // The sizes that the view points at may be gone by now; a new array is row-major.
  Tensor tensor;
  tensor.data = static_cast<char*>(view.data) + view.byte_offset;
  tensor.dtype = dtype;
  tensor.device = device;
  tensor.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    stride *= shape[i];
  }
  return {std::move(object), tensor};
}

std::pair<nb::object, void*> Framework::bytes(std::int64_t bytes, Device device) const {
  const std::array<std::int64_t, 1> shape = {bytes};
  auto [object, view] = allocate({dlpack::code_uint, 8, 1}, "uint8", shape, device);
  return {std::move(object), static_cast<char*>(view.data) + view.byte_offset};
}

void* Framework::stream(nb::handle stream, Device device) const {
  if (device.type == DeviceType::cpu) return nullptr;
  if (!stream.is_none()) {
    if (PyLong_Check(stream.ptr())) return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream));
  } else if (api_ != nullptr) {
    void* current = nullptr;
    if (api_->current_stream(kvsieve::dlpack::device_cuda, device.index, &current) != 0) throw nb::python_error();
    return current;
  }
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(arrays("stream_handle")(stream, like_)));
}

OutputArgument::OutputArgument(nb::handle object, const char* name, const Framework& framework, DType dtype,
                               std::span<const std::int64_t> shape, Device device)
    : object_(nb::none()) {
  if (object.is_none() || object.ptr() == Py_False) return;
  if (object.ptr() != Py_True) {
    object_ = nb::borrow(object);
    given_.emplace(object, name, Access::write);
    tensor_ = given_->tensor();
  } else if (!shape.empty()) {
    std::tie(object_, tensor_) = framework.empty(dtype, shape, device);
  }
}

WorkspaceArgument::WorkspaceArgument(nb::handle object, std::size_t required, const Framework& framework,
                                     Device device) {
  static thread_local ThreadMemory thread_memory;
  if (object.is_none()) {
    if (required == 0) return;
    if (device.type == DeviceType::cpu) {
      workspace_ = {thread_memory.at_least(required), required};
    } else {
      std::tie(memory_, workspace_.data) = framework.bytes(static_cast<std::int64_t>(required), device);
      workspace_.bytes = required;
    }
    return;
  }
  given_.emplace(object, "workspace", Access::write);
  const dlpack::Tensor& view = given_->dlpack();
  const bool on_cpu = view.device.device_type == kvsieve::dlpack::device_cpu ||
                      view.device.device_type == kvsieve::dlpack::device_cuda_host;
  if (on_cpu != (device.type == DeviceType::cpu) || (!on_cpu && view.device.device_id != device.index)) {
    throw ArgumentError("workspace",
                        on_cpu ? "memory on cpu" : "memory on cuda:" + std::to_string(view.device.device_id),
                        "memory on " + to_string(device));
  }
  std::int64_t count = 1;
  for (int i = view.ndim; i-- > 0;) {
    if (view.shape[i] > 1 && view.strides != nullptr && view.strides[i] != count) {
      throw ArgumentError("workspace", "an array with gaps", "a contiguous array");
    }
    count *= view.shape[i];
  }
  workspace_.data = static_cast<char*>(view.data) + view.byte_offset;
  workspace_.bytes = static_cast<std::size_t>(count) * (view.dtype.bits / 8u);
}

}  // namespace kvsieve::python
