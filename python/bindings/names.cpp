// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <string>

#include "call_options.hpp"

namespace kvsieve::python {

int thread_count(nanobind::handle object) {
  const std::int64_t count = integer(object, "num_threads");
  if (count < 0 || count > (1 << 20)) throw ArgumentError("num_threads", std::to_string(count), "at least 0");
  return static_cast<int>(count);
}

DType dtype_from_name(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::i32, DType::i64}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  throw ArgumentError("dtype", "\"" + std::string(name) + "\"", "f32, f16, bf16 or f8_e4m3");
}

Device device_from_name(std::string_view name) {
  if (name == "cpu") return {};
  if (name == "cuda") return {DeviceType::cuda, 0};
  constexpr std::string_view prefix = "cuda:";
  if (name.starts_with(prefix)) {
    int index = -1;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, index);
    if (error == std::errc() && rest == end && index >= 0) return {DeviceType::cuda, index};
  }
  throw ArgumentError("device", "\"" + std::string(name) + "\"", "cpu, cuda or cuda:N");
}

}  // namespace kvsieve::python
