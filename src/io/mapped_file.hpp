// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvsieve::io {

/// A regular file mapped read-only into memory.
class MappedFile {
 public:
  /// Throws CaseError for anything that is not a readable, non-empty regular file. Never blocks (a FIFO is refused).
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  const std::string& path() const noexcept { return path_; }

  /// Throws CaseError when the file is no longer as long as it was when it was mapped: touching a page past the new end
  /// would raise SIGBUS. A check like this cannot close the race with a writer; the `kvsieve` command also turns a
  /// SIGBUS into an error line.
  void check_not_truncated() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvsieve::io
