// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <nanobind/stl/string.h>

#include <exception>
#include <string>

#include "io/case_error.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

void raise(const char* class_name, const nb::object& arguments) {
  const nb::object type = nb::module_::import_("kvsieve.errors").attr(class_name);
  const nb::object error = type(*arguments);
  PyErr_SetObject(type.ptr(), error.ptr());
}

nb::tuple parts(const ArgumentError& error) { return nb::make_tuple(error.argument(), error.got(), error.want()); }

}  // namespace

void register_errors() {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const ArgumentTypeError& error) {
      raise("ArgumentTypeError", parts(error));
    } catch (const ArgumentError& error) {
      raise("ArgumentError", parts(error));
    } catch (const UnsupportedError& error) {
      raise("UnsupportedError", nb::make_tuple(error.what()));
    } catch (const IndexError& error) {
      raise("IndexError", nb::make_tuple(error.what(), error.bad_entries()));
    } catch (const io::CaseError& error) {
      raise("CaseError", nb::make_tuple(error.file(), error.tensor(), error.reason()));
    } catch (const Error& error) {
      raise("Error", nb::make_tuple(error.what()));
    }
  });
}

std::string string_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

std::string type_of(nb::handle object) {
  return string_of(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))));
}

}  // namespace kvsieve::python
