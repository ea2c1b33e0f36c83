// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/case_error.hpp"

namespace kvsieve::io {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) throw CaseError(path, fmt::format("cannot open: {}", std::strerror(errno)));
  try {
    struct stat status {};
    if (fstat(descriptor_, &status) != 0) throw CaseError(path, fmt::format("cannot stat: {}", std::strerror(errno)));
    if (S_ISDIR(status.st_mode)) throw CaseError(path, "is a directory");
    if (!S_ISREG(status.st_mode)) throw CaseError(path, "is not a regular file");
    if (status.st_size == 0) throw CaseError(path, "is empty");
    size_ = static_cast<std::size_t>(status.st_size);
    void* const mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
    if (mapping == MAP_FAILED) throw CaseError(path, fmt::format("cannot map: {}", std::strerror(errno)));
    data_ = static_cast<const std::byte*>(mapping);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(data_), size_);
  close(descriptor_);
}

void MappedFile::check_not_truncated() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) throw CaseError(path_, fmt::format("cannot stat: {}", std::strerror(errno)));
  if (static_cast<std::size_t>(status.st_size) < size_) {
    throw CaseError(path_, fmt::format("was cut from {} to {} bytes while in use", size_, status.st_size));
  }
}

}  // namespace kvsieve::io
