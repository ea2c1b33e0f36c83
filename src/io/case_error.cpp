// SPDX-License-Identifier: Apache-2.0
#include "io/case_error.hpp"

#include <fmt/format.h>

namespace kvsieve::io {
namespace {

std::string escaped(std::string_view text, std::size_t max_length) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= max_length) return out + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == '"' || byte == '\\') {
      out += {'\\', static_cast<char>(byte)};
    } else {
      out += static_cast<char>(byte);
    }
  }
  return out;
}

/// File names keep their own alphabet (UTF-8 is common), but may not break the line.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string message(std::string_view file, std::string_view tensor, std::string_view reason) {
  const std::string where = tensor.empty() ? std::string() : fmt::format("tensor {}: ", in_quotes(tensor));
  return fmt::format("{}: {}{}", one_line(file), where, one_line(reason));
}

}  // namespace

std::string in_quotes(std::string_view text, std::size_t max_length) { return '"' + escaped(text, max_length) + '"'; }

CaseError::CaseError(std::string_view file, std::string_view tensor, std::string_view reason)
    : Error(message(file, tensor, reason)), file_(file), tensor_(tensor), reason_(one_line(reason)) {}

}  // namespace kvsieve::io
