// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of `kvsieve`. Each function adds one to the application; its callback stores the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace kvsieve::tools {

enum ExitCode : int {
  success = 0,
  mismatch = 1,   ///< a result is wrong
  bad_input = 2,  ///< the command line, a file, or what this build and machine can do; output that cannot be written
};

void add_run_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, int& exit_code);
void add_info_command(CLI::App& app, int& exit_code);
void add_demo_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);

}  // namespace kvsieve::tools
