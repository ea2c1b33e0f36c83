// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvsieve::tools {

/// Text in columns as wide as their widest entry.
class Table {
 public:
  enum class Align { left, right };

  void add_column(std::string heading, Align align = Align::right) {
    headings_.push_back(std::move(heading));
    aligns_.push_back(align);
  }
  /// As many cells as there are columns.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// Lines that end in '\n': the headings, then the rows.
  std::string text() const;

 private:
  std::vector<std::string> headings_;
  std::vector<Align> aligns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvsieve::tools
