// SPDX-License-Identifier: Apache-2.0
#include "tensor_argument.hpp"

#include <string>
#include <string_view>

#include "errors.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

[[noreturn]] void fail(const char* name, std::string got, const char* want) {
  throw ArgumentError(name, std::move(got), want);
}

[[noreturn]] void fail_type(nb::handle object, const char* name, const char* want) {
  throw ArgumentTypeError(name, type_of(object), want);
}

constexpr const char* want_array = "an array: torch, NumPy, JAX, CuPy or another that speaks DLPack";

/// The message of the Python exception that is set, which is cleared.
std::string take_python_error() {
  const nb::python_error error;
  return string_of(error.type().attr("__name__")) + ": " + string_of(error.value());
}

/// What kind of object a type's instances are. Found out once per type, since looking at attributes costs more than the
/// call that follows.
struct TypeTraits {
  PyTypeObject* type = nullptr;  // kept alive, so that its address is not used again
  const dlpack::ExchangeApi* api = nullptr;
  bool is_torch = false;
  bool is_numpy = false;
  bool is_immutable = false;
  bool has_dlpack = false;
};

bool starts_with(nb::handle type, std::string_view prefix) {
  const nb::object module = nb::getattr(type, "__module__", nb::str(""));
  if (!nb::isinstance<nb::str>(module)) return false;
  return string_of(module).starts_with(prefix);
}

bool inherits(nb::handle type, std::string_view module, std::string_view name) {
  const nb::object bases = nb::getattr(type, "__mro__", nb::tuple());
  for (nb::handle base : bases) {
    const nb::object base_name = nb::getattr(base, "__name__", nb::str(""));
    if (string_of(base_name) == name && starts_with(base, module)) return true;
  }
  return false;
}

TypeTraits look_at(PyTypeObject* python_type) {
  const nb::handle type(reinterpret_cast<PyObject*>(python_type));
  TypeTraits traits;
  traits.type = python_type;
  if (nb::hasattr(type, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
    const void* const pointer = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (pointer == nullptr) PyErr_Clear();
    const auto* api = static_cast<const dlpack::ExchangeApi*>(pointer);
    while (api != nullptr && api->version.major != dlpack::major_version) api = api->previous;
    if (api != nullptr && api->view_of_object != nullptr) traits.api = api;
  }
  traits.is_torch = inherits(type, "torch", "Tensor");
  traits.is_numpy = inherits(type, "numpy", "ndarray");
  traits.is_immutable = starts_with(type, "jax");
  traits.has_dlpack = nb::hasattr(type, "__dlpack__") && nb::hasattr(type, "__dlpack_device__");
  return traits;
}

/// Never evicted: a process has a handful of array types. Guarded by the GIL.
const TypeTraits& traits_of(PyTypeObject* type) {
  static constexpr int capacity = 16;
  static std::array<TypeTraits, capacity> known;
  static int count = 0;
  for (int i = 0; i < count; ++i) {
    if (known[static_cast<std::size_t>(i)].type == type) return known[static_cast<std::size_t>(i)];
  }
  static TypeTraits unnamed;
  TypeTraits traits = look_at(type);
  if (count == capacity) return unnamed = traits;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  return known[static_cast<std::size_t>(count++)] = traits;
}

/// dtypes by the name that torch, NumPy and ml_dtypes agree on. Bits 0 for an unknown one.
dlpack::DataType dtype_by_name(std::string_view name) {
  using namespace kvsieve::dlpack;
  const auto make = [](int code, int bits) {
    return dlpack::DataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  if (name == "float32") return make(code_float, 32);
  if (name == "float16") return make(code_float, 16);
  if (name == "bfloat16") return make(code_bfloat, 16);
  if (name == "float8_e4m3fn") return make(code_float8_e4m3fn, 8);
  if (name == "int32") return make(code_int, 32);
  if (name == "int64") return make(code_int, 64);
  if (name == "uint8") return make(dlpack::code_uint, 8);
  return make(code_int, 0);
}

/// dtype of a buffer by its `struct` format; bits 0 for one that is not native or that kvsieve does not have.
dlpack::DataType dtype_by_format(const char* format, Py_ssize_t size) {
  const std::string_view text = format == nullptr ? "B" : format;
  if (text == "f") return dtype_by_name("float32");
  if (text == "e") return dtype_by_name("float16");
  if (text == "B" || text == "b") return dtype_by_name("uint8");
  if (text == "i" || text == "l" || text == "q") {
    if (size == 4) return dtype_by_name("int32");
    if (size == 8) return dtype_by_name("int64");
  }
  return {0, 0, 1};
}

/// NumPy's unsigned integers of 8 or 16 bits.
nb::handle integers_of(int bits) {
  static const nb::handle numpy = nb::module_::import_("numpy").release();
  static const nb::handle of_8 = nb::object(numpy.attr("dtype")("u1")).release();
  static const nb::handle of_16 = nb::object(numpy.attr("dtype")("u2")).release();
  return bits == 8 ? of_8 : of_16;
}

/// The two types of ml_dtypes that kvsieve takes, by their dtype objects, which are singletons in practice. NumPy gives
/// no buffer for them, so their arrays are seen through an integer view of the same width.
dlpack::DataType ml_dtype(nb::handle array) {
  static std::array<std::pair<PyObject*, dlpack::DataType>, 8> known{};
  static std::size_t count = 0;
  const nb::object dtype = array.attr("dtype");
  for (std::size_t i = 0; i < count; ++i) {
    if (known[i].first == dtype.ptr()) return known[i].second;
  }
  const std::string name = string_of(dtype.attr("name"));
  const bool is_ml = name == "bfloat16" || name == "float8_e4m3fn";
  const dlpack::DataType found = is_ml ? dtype_by_name(name) : dlpack::DataType{0, 0, 1};
  if (count < known.size()) known[count++] = {nb::object(dtype).release().ptr(), found};
  return found;
}

}  // namespace

const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) { return traits_of(type).api; }

bool is_tensor(nb::handle object) {
  const TypeTraits& traits = traits_of(Py_TYPE(object.ptr()));
  return traits.api != nullptr || traits.is_torch || traits.is_numpy || traits.has_dlpack;
}

ArrayView::ArrayView(nb::handle object, const char* name, Access access) : name_(name) {
  const TypeTraits& traits = traits_of(Py_TYPE(object.ptr()));
  if (access == Access::write && traits.is_immutable) fail(name, "an array of " + type_of(object), "a writable array");
  if (traits.api != nullptr) {
    if (traits.api->view_of_object(object.ptr(), &view_) != 0) fail(name, take_python_error(), want_array);
  } else if (traits.is_torch) {
    from_torch_attributes(object);
  } else if (traits.is_numpy) {
    from_buffer(object, access);
  } else if (traits.has_dlpack) {
    from_capsule(object, access);
  } else {
    fail_type(object, name, want_array);
  }
}

void ArrayView::set_shape(int rank) {
  if (rank > Tensor::max_rank) {
    throw ArgumentError(name_, std::to_string(rank) + " dimensions", "at most " + std::to_string(Tensor::max_rank));
  }
  view_.ndim = rank;
  view_.shape = shape_.data();
  view_.strides = strides_.data();
}

void ArrayView::from_torch_attributes(nb::handle tensor) {
  const std::string dtype = string_of(tensor.attr("dtype"));
  view_.dtype = dtype_by_name(std::string_view(dtype).substr(sizeof("torch.") - 1));
  if (view_.dtype.bits == 0) fail(name_, dtype, "a dtype that kvsieve has");
  const nb::object device = tensor.attr("device");
  const std::string type = string_of(device.attr("type"));
  if (type != "cpu" && type != "cuda") fail(name_, "a tensor on " + type, "one on cpu or cuda");
  view_.device.device_type = type == "cpu" ? kvsieve::dlpack::device_cpu : kvsieve::dlpack::device_cuda;
  view_.device.device_id = type == "cpu" ? 0 : nb::cast<int>(device.attr("index"));
  view_.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(tensor.attr("data_ptr")()));
  set_shape(nb::cast<int>(tensor.attr("ndim")));
  const nb::object shape = tensor.attr("shape"), strides = tensor.attr("stride")();
  for (int i = 0; i < view_.ndim; ++i) {
    shape_[static_cast<std::size_t>(i)] = nb::cast<std::int64_t>(shape[i]);
    strides_[static_cast<std::size_t>(i)] = nb::cast<std::int64_t>(strides[i]);
  }
}

void ArrayView::from_buffer(nb::handle object, Access access) {
  dlpack::DataType dtype = ml_dtype(object);
  nb::object exporter = nb::borrow(object);
  if (dtype.bits != 0) exporter = object.attr("view")(integers_of(dtype.bits));
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (access == Access::write ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(exporter.ptr(), &buffer_.raw, flags) != 0) {
    buffer_.raw.obj = nullptr;
    fail(name_, take_python_error(), access == Access::write ? "a writable array" : want_array);
  }
  if (dtype.bits == 0) dtype = dtype_by_format(buffer_.raw.format, buffer_.raw.itemsize);
  if (dtype.bits == 0) {
    fail(name_, std::string("an array of ") + string_of(object.attr("dtype")), "a dtype that kvsieve has");
  }
  view_.dtype = dtype;
  view_.data = buffer_.raw.buf;
  view_.device = {kvsieve::dlpack::device_cpu, 0};
  set_shape(buffer_.raw.ndim);
  for (int i = 0; i < buffer_.raw.ndim; ++i) {
    if (buffer_.raw.strides[i] % buffer_.raw.itemsize != 0 && buffer_.raw.shape[i] > 1) {
      fail(name_, "a stride of " + std::to_string(buffer_.raw.strides[i]) + " bytes", "a multiple of the element size");
    }
    shape_[static_cast<std::size_t>(i)] = buffer_.raw.shape[i];
    strides_[static_cast<std::size_t>(i)] = buffer_.raw.strides[i] / buffer_.raw.itemsize;
  }
}

void ArrayView::from_capsule(nb::handle object, Access access) {
  const nb::object export_method = object.attr("__dlpack__");
  try {
    try {
      owner_ = export_method(nb::arg("max_version") = nb::make_tuple(1, 1));
    } catch (nb::python_error& error) {  // the library is older than the versioned exchange
      if (!error.matches(PyExc_TypeError)) throw;
      owner_ = export_method();
    }
  } catch (nb::python_error& error) {
    fail(name_, string_of(error.type().attr("__name__")) + ": " + string_of(error.value()), want_array);
  }
  if (PyCapsule_IsValid(owner_.ptr(), "dltensor_versioned")) {
    const auto* const managed =
        static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(owner_.ptr(), "dltensor_versioned"));
    if (managed->version.major != dlpack::major_version) fail(name_, "another version of DLPack", "version 1");
    if (access == Access::write && (managed->flags & dlpack::flag_read_only) != 0) {
      fail(name_, "a read-only array", "a writable array");
    }
    view_ = managed->tensor;
  } else if (PyCapsule_IsValid(owner_.ptr(), "dltensor")) {
    view_ = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(owner_.ptr(), "dltensor"))->tensor;
  } else {
    fail_type(object, name_, want_array);
  }
}

Tensor as_tensor(const dlpack::Tensor& tensor, const char* name) {
  try {
    return from_dlpack(tensor);
  } catch (const ArgumentError& error) {
    throw ArgumentError(name, error.got(), error.want());
  }
}

TensorArgument::TensorArgument(nb::handle object, const char* name, Access access) {
  if (object.is_none()) return;
  view_.emplace(object, name, access);
  tensor_ = as_tensor(view_->dlpack(), name);
}

float number(nb::handle object, const char* name) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail_type(object, name, "a number");
  }
  return static_cast<float>(value);
}

std::int64_t integer(nb::handle object, const char* name) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    fail_type(object, name, "an integer");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) throw ArgumentError(name, string_of(index), "an integer of 64 bits");
  return value;
}

std::int64_t integer_or(nb::handle object, const char* name, std::int64_t if_none) {
  return object.is_none() ? if_none : integer(object, name);
}

bool flag(nb::handle object, const char* name) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  if (type_of(object).find("numpy.bool") == std::string::npos) fail_type(object, name, "True or False");
  return PyObject_IsTrue(object.ptr()) == 1;
}

std::string_view text(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::str>(object)) fail_type(object, name, "a string");
  return nb::borrow<nb::str>(object).c_str();
}

ScalarArgument::ScalarArgument(nb::handle object, const char* name, float if_none)
    : tensor_(!PyFloat_Check(object.ptr()) && !object.is_none() && is_tensor(object) ? object : nb::handle(Py_None),
              name),
      given_(!object.is_none()) {
  if (tensor_.tensor().defined()) {
    scalar_ = tensor_.tensor();
  } else {
    scalar_ = given_ ? number(object, name) : if_none;
  }
}

}  // namespace kvsieve::python
