// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <string>
#include <string_view>

#include "framework.hpp"
#include "kvsieve/options.hpp"

namespace kvsieve::python {

DType dtype_from_name(std::string_view name);
/// "cpu", "cuda" or "cuda:1".
Device device_from_name(std::string_view name);

/// The arguments of a call, which come as one tuple: nanobind would take longer to look at each than the call takes.
template <std::size_t count>
std::array<nanobind::handle, count> unpack(const nanobind::tuple& arguments) {
  if (arguments.size() != count)
    throw ArgumentError("arguments", std::to_string(arguments.size()), std::to_string(count));
  std::array<nanobind::handle, count> all;
  for (std::size_t i = 0; i < count; ++i) all[i] = PyTuple_GetItem(arguments.ptr(), static_cast<Py_ssize_t>(i));
  return all;
}

/// `num_threads`, which is an int.
int thread_count(nanobind::handle object);

/// Options of a call without its workspace. `path` is a name or None.
inline CallOptions call_options(const Framework& framework, Device device, nanobind::handle stream,
                                nanobind::handle path, int num_threads, nanobind::handle unchecked,
                                nanobind::handle check_indices) {
  CallOptions options;
  options.stream = framework.stream(stream, device);
  if (!path.is_none()) options.path = path_from_name(text(path, "path"));
  options.num_threads = num_threads;
  options.unchecked = flag(unchecked, "unchecked");
  options.check_indices = flag(check_indices, "check_indices");
  return options;
}

/// Workspace of a call, by `size()`. A configuration that no call could have needs none: the call itself then says
/// which argument is wrong.
template <class Size>
std::size_t workspace_or_zero(Size&& size) {
  try {
    return size();
  } catch (const ArgumentError&) {
    return 0;
  }
}

}  // namespace kvsieve::python
