// SPDX-License-Identifier: Apache-2.0
//
// The JSON header of a safetensors file, as a stream of parser events: nothing is stored that the format does not
// have, so neither nesting nor size of the JSON can exhaust the stack or memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"

namespace kvsieve::io {

/// One tensor as the header describes it; nothing is checked yet beyond JSON types.
struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;  ///< begin and end
};

struct Header {
  Metadata metadata;
  std::vector<HeaderEntry> entries;
};

/// Throws CaseError, in the name of `file`.
Header parse_header(std::string_view json, const std::string& file);

}  // namespace kvsieve::io
