// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace kvsieve::tools {
namespace {

constexpr int bar_width = 24;
constexpr const char* back_to_an_empty_line = "\r\033[K";

/// Nobody may be able to read it (a full disk, a closed stderr): no reason to give up the work.
void show(const std::string& text) { std::fputs(text.c_str(), stderr); }

}  // namespace

Progress::Progress(std::string command, int steps)
    : command_(std::move(command)), steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_) std::fputs(back_to_an_empty_line, stderr);
}

void Progress::step(const std::string& name) {
  ++current_;
  step_name_ = name;
  if (terminal_) {
    draw(name);
  } else {
    show(fmt::format("{}: {}/{} {}\n", command_, current_, steps_, name));
  }
}

void Progress::stage(const std::string& name) {
  if (terminal_) draw(step_name_ + ": " + name);
}

void Progress::draw(const std::string& text) const {
  const int filled = bar_width * (current_ - 1) / steps_;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  show(fmt::format("{}{} [{:#<{}}{:.<{}}] {}/{} {:.0f} s  {}", back_to_an_empty_line, command_, "", filled, "",
                   bar_width - filled, current_, steps_, elapsed.count(), text));
  std::fflush(stderr);
}

}  // namespace kvsieve::tools
