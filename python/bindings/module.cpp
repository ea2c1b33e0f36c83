// SPDX-License-Identifier: Apache-2.0
//
// kvsieve._core: the calls with every argument in its place. Names, defaults and documentation are in the Python
// package.
#include <nanobind/nanobind.h>

#include "calls.hpp"
#include "errors.hpp"
#include "kvsieve/info.hpp"

NB_MODULE(_core, m) {
  kvsieve::python::register_errors();
  m.attr("__version__") = kvsieve::version();
  kvsieve::python::bind_msa(m);
  kvsieve::python::bind_qsa(m);
  kvsieve::python::bind_merge(m);
  kvsieve::python::bind_info(m);
  kvsieve::python::bind_cases(m);
}
