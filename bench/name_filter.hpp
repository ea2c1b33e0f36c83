// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace kvsieve::bench {

/// Whether the name of a row contains a filter, in any case.
inline bool name_contains(const std::string& name, const std::string& filter) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return std::search(name.begin(), name.end(), filter.begin(), filter.end(), same) != name.end();
}

}  // namespace kvsieve::bench
