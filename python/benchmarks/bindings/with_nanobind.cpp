// SPDX-License-Identifier: Apache-2.0
//
// A function of ten tensors in nanobind: with its own arrays, with DLPack's exchange functions, with Python's buffers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "../../bindings/dlpack.hpp"

namespace nb = nanobind;
namespace dlpack = kvsieve::python::dlpack;
using Array = nb::ndarray<>;
using Object = nb::handle;

namespace {

std::int64_t by_exchange(Object object) {
  static PyTypeObject* type = nullptr;
  static const dlpack::ExchangeApi* api = nullptr;
  if (type != Py_TYPE(object.ptr())) {
    type = Py_TYPE(object.ptr());
    const nb::object capsule = nb::handle(reinterpret_cast<PyObject*>(type)).attr("__dlpack_c_exchange_api__");
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  }
  dlpack::Tensor view;
  if (api->view_of_object(object.ptr(), &view) != 0) throw nb::python_error();
  return view.shape[0];
}

std::int64_t by_buffer(Object object) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw nb::python_error();
  const std::int64_t size = buffer.shape[0];
  PyBuffer_Release(&buffer);
  return size;
}

std::int64_t by_ndarray(const Array& array) { return static_cast<std::int64_t>(array.shape(0)); }

template <class Argument, std::int64_t (*size)(Argument)>
std::int64_t sum(Argument a, Argument b, Argument c, Argument d, Argument e, Argument f, Argument g, Argument h,
                 Argument i, Argument j, double, bool, std::int64_t) {
  return size(a) + size(b) + size(c) + size(d) + size(e) + size(f) + size(g) + size(h) + size(i) + size(j);
}

}  // namespace

NB_MODULE(with_nanobind, m) {
  m.def("ndarray", &sum<const Array&, by_ndarray>);
  m.def("exchange", &sum<Object, by_exchange>);
  m.def("buffer", &sum<Object, by_buffer>);
}
