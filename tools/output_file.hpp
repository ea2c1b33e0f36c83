// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>

namespace kvsieve::tools {

/// A file that is opened before the work whose result it will hold, so that a path that cannot be written costs no
/// work. What it held stays until write(); a file that was not there is taken away again when nothing is written.
class OutputFile {
 public:
  /// Throws Error when the file cannot be opened for writing.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Replaces the contents. Throws Error when it cannot.
  void write(const std::string& text);
  /// The file stays, as someone else has written it.
  void keep() noexcept { remove_ = false; }

 private:
  std::string path_;
  bool remove_;  ///< made here, and nothing is in it yet
  std::ofstream stream_;
};

}  // namespace kvsieve::tools
