// SPDX-License-Identifier: Apache-2.0
#include "bench/child_process.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <exception>

#include "kvsieve/error.hpp"

namespace kvsieve::bench {
namespace {

enum ChildStatus : int { returned = 0, threw = 1, could_not_report = 2 };

bool write_all(int file, const std::byte* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = write(file, data, size);
    if (written < 0 && errno != EINTR) return false;
    if (written <= 0) continue;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

/// Until the other end is closed.
std::vector<std::byte> read_all(int file) {
  std::vector<std::byte> bytes;
  std::byte buffer[4096];
  while (true) {
    const ssize_t count = read(file, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return bytes;
    bytes.insert(bytes.end(), buffer, buffer + count);
  }
}

/// Never returns, and runs no destructor or exit handler of the parent's.
[[noreturn]] void child_main(int file, const std::function<std::vector<std::byte>()>& body) {
  std::vector<std::byte> bytes;
  ChildStatus status = returned;
  try {
    bytes = body();
  } catch (const std::exception& error) {
    status = threw;
    const auto* const message = reinterpret_cast<const std::byte*>(error.what());
    bytes.assign(message, message + std::strlen(error.what()));
  }
  if (!write_all(file, bytes.data(), bytes.size())) status = could_not_report;
  _exit(status);
}

}  // namespace

ChildOutput run_in_child(const std::string& what, const std::function<std::vector<std::byte>()>& body) {
  int ends[2];
  if (pipe(ends) != 0) throw Error(fmt::format("{}: no pipe: {}", what, std::strerror(errno)));
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    throw Error(fmt::format("{}: no process: {}", what, std::strerror(error)));
  }
  if (child == 0) {
    close(ends[0]);
    child_main(ends[1], body);
  }
  close(ends[1]);
  ChildOutput output;
  output.bytes = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) throw Error(fmt::format("{}: killed by signal {}", what, WTERMSIG(status)));
  if (WEXITSTATUS(status) == threw) {
    throw Error(fmt::format("{}: {}", what,
                            std::string(reinterpret_cast<const char*>(output.bytes.data()), output.bytes.size())));
  }
  if (WEXITSTATUS(status) != returned) throw Error(fmt::format("{}: its result was lost", what));
  output.peak_bytes = static_cast<std::size_t>(usage.ru_maxrss) * 1024;
  return output;
}

}  // namespace kvsieve::bench
