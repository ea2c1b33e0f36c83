// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "io/safetensors.hpp"

namespace kvsieve::io {

/// Strict reader of a file's metadata: a value is taken whole and within its range or refused with a CaseError that
/// names the key. Remembers which keys were asked for.
class MetadataReader {
 public:
  explicit MetadataReader(const SafetensorsFile& file) : file_(file) {}

  std::optional<std::string_view> text(std::string_view key);
  /// "true" or "false".
  std::optional<bool> flag(std::string_view key);
  /// Decimal integer within [low, high].
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  /// Finite decimal number that fits a float.
  std::optional<float> real(std::string_view key);

  bool was_read(std::string_view key) const { return read_.contains(std::string(key)); }

  [[noreturn]] void fail(std::string_view key, std::string_view want) const;
  /// As fail, for a key that is not there.
  [[noreturn]] void fail_missing(std::string_view key, std::string_view want) const;

 private:
  const SafetensorsFile& file_;
  std::set<std::string> read_;
};

}  // namespace kvsieve::io
