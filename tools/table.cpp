// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvsieve::tools {

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < headings_.size(); ++i) {
    std::size_t width = headings_[i].size();
    for (const std::vector<std::string>& row : rows_) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += "  ";
      line += aligns_[i] == Align::left ? fmt::format("{:<{}}", cells[i], widths[i])
                                        : fmt::format("{:>{}}", cells[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  append(headings_);
  for (const std::vector<std::string>& row : rows_) append(row);
  return text;
}

}  // namespace kvsieve::tools
