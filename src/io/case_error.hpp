// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kvsieve/error.hpp"

namespace kvsieve::io {

/// Something is wrong with a case file. `what()` is one line: `FILE: tensor "NAME": REASON`, or `FILE: REASON` when
/// no single tensor is at fault. Whatever a file may contain is escaped, so the line stays one line.
class CaseError : public Error {
 public:
  CaseError(std::string_view file, std::string_view tensor, std::string_view reason);
  CaseError(std::string_view file, std::string_view reason) : CaseError(file, {}, reason) {}

  const std::string& file() const noexcept { return file_; }
  /// Name of the tensor at fault, empty when the fault is not in one.
  const std::string& tensor() const noexcept { return tensor_; }
  const std::string& reason() const noexcept { return reason_; }

 private:
  std::string file_;
  std::string tensor_;
  std::string reason_;
};

/// `text` in double quotes with control characters, quotes and bytes past ASCII escaped, cut to `max_length`
/// characters.
std::string in_quotes(std::string_view text, std::size_t max_length = 64);

}  // namespace kvsieve::io
