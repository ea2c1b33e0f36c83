// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/info.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "calls.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

nb::dict info_as_dict() {
  const Info found = info();
  nb::list paths;
  for (const PathInfo& path : found.paths) {
    paths.append(nb::make_tuple(std::string(path_name(path.path)), path.available, path.detail));
  }
  nb::dict result;
  result["version"] = found.version;
  result["simd_target"] = found.simd_target;
  result["bf16_dot"] = found.bf16_dot;
  result["num_threads"] = found.num_threads;
  result["devices"] = nb::cast(found.devices);
  result["paths"] = paths;
  return result;
}

}  // namespace

void bind_info(nb::module_& m) { m.def("info", &info_as_dict); }

}  // namespace kvsieve::python
