// SPDX-License-Identifier: Apache-2.0
//
// Work in a process of its own: a fresh heap, no threads of others, and a peak of memory that is this work's alone.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace kvsieve::bench {

struct ChildOutput {
  std::vector<std::byte> bytes;
  std::size_t peak_bytes = 0;  ///< largest resident set
};

/// Runs `body` in a forked process and returns what it returned. Throws kvsieve::Error, in the name of `what`, when
/// that process threw (with its message) or died.
ChildOutput run_in_child(const std::string& what, const std::function<std::vector<std::byte>()>& body);

template <class Value>
struct ChildResult {
  Value value{};
  std::size_t peak_bytes = 0;
};

/// The same for a body that returns a plain value.
template <class Body>
auto value_from_child(const std::string& what, const Body& body) {
  using Value = std::invoke_result_t<const Body&>;
  static_assert(std::is_trivially_copyable_v<Value>);
  const ChildOutput output = run_in_child(what, [&] {
    const Value value = body();
    std::vector<std::byte> bytes(sizeof(Value));
    std::memcpy(bytes.data(), &value, sizeof(Value));
    return bytes;
  });
  ChildResult<Value> result;
  result.peak_bytes = output.peak_bytes;
  std::memcpy(&result.value, output.bytes.data(), sizeof(Value));
  return result;
}

}  // namespace kvsieve::bench
