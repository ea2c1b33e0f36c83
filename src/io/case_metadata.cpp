// SPDX-License-Identifier: Apache-2.0
#include "io/case_metadata.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace kvsieve::io {
namespace {

/// The whole of `text` as a number, or nothing.
template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string_view> MetadataReader::text(std::string_view key) {
  read_.emplace(key);
  const auto found = file_.metadata.find(key);
  if (found == file_.metadata.end()) return std::nullopt;
  return found->second;
}

std::optional<bool> MetadataReader::flag(std::string_view key) {
  const auto value = text(key);
  if (!value) return std::nullopt;
  if (*value != "true" && *value != "false") fail(key, "true or false");
  return *value == "true";
}

std::optional<std::int64_t> MetadataReader::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const auto value = text(key);
  if (!value) return std::nullopt;
  const auto number = parse<std::int64_t>(*value);
  if (!number || *number < low || *number > high) fail(key, fmt::format("an integer from {} to {}", low, high));
  return number;
}

std::optional<float> MetadataReader::real(std::string_view key) {
  const auto value = text(key);
  if (!value) return std::nullopt;
  const auto number = parse<float>(*value);
  if (!number || !std::isfinite(*number)) fail(key, "a finite number");
  return number;
}

void MetadataReader::fail(std::string_view key, std::string_view want) const {
  const auto found = file_.metadata.find(key);
  throw CaseError(file_.name, fmt::format("metadata {}: got {}, want {}", key, in_quotes(found->second), want));
}

void MetadataReader::fail_missing(std::string_view key, std::string_view want) const {
  throw CaseError(file_.name, fmt::format("metadata {}: not given, want {}", key, want));
}

}  // namespace kvsieve::io
