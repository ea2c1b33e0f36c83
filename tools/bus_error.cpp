// SPDX-License-Identifier: Apache-2.0
#include "bus_error.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "commands.hpp"

namespace kvsieve::tools {
namespace {

// A signal handler may only read what was made ready for it.
std::string message;
struct sigaction previous {};
std::atomic_flag told = ATOMIC_FLAG_INIT;

void on_bus_error(int) {
  // Threads that work on the same file fault together: the first speaks and ends the process, the others wait for that.
  while (told.test_and_set()) pause();
  // Nothing can be done about a message that cannot be written.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
  _exit(bad_input);
}

}  // namespace

BusErrorGuard::BusErrorGuard(const std::string& file) {
  message = file + ": was cut or became unreadable while in use\n";
  struct sigaction action {};
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, &previous);
}

BusErrorGuard::~BusErrorGuard() { sigaction(SIGBUS, &previous, nullptr); }

}  // namespace kvsieve::tools
