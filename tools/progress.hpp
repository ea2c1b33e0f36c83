// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace kvsieve::tools {

/// How far a command is, on stderr: one bar that is redrawn where stderr is a terminal, elsewhere a line per step.
class Progress {
 public:
  Progress(std::string command, int steps);
  /// Takes the bar away.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The next step begins.
  void step(const std::string& name);
  /// What the present step is doing; shown on a terminal only.
  void stage(const std::string& name);

 private:
  void draw(const std::string& text) const;

  std::string command_;
  int steps_;
  int current_ = 0;  ///< counts from 1
  std::string step_name_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvsieve::tools
