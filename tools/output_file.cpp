// SPDX-License-Identifier: Apache-2.0
#include "output_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kvsieve/error.hpp"

namespace kvsieve::tools {
namespace {

namespace fs = std::filesystem;

/// Reports errno.
[[noreturn]] void fail(const std::string& path) {
  throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

// Appending opens a file without emptying it.
OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), remove_(!exists(path_)), stream_(path_, std::ios::app) {
  if (!stream_) fail(path_);
}

OutputFile::~OutputFile() {
  std::error_code ignored;
  if (remove_) fs::remove(path_, ignored);
}

void OutputFile::write(const std::string& text) {
  std::error_code error;
  if (fs::is_regular_file(path_, error)) {  // devices and pipes hold nothing that could be replaced
    fs::resize_file(path_, 0, error);
    if (error) throw Error(fmt::format("{}: cannot be written: {}", path_, error.message()));
  }
  keep();
  if (!(stream_ << text << std::flush)) fail(path_);
}

}  // namespace kvsieve::tools
