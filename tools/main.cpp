// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "commands.hpp"
#include "kvsieve/info.hpp"

namespace kvsieve::tools {
namespace {

int run_command(int argc, char** argv) {
  CLI::App app("Attention over selected KV-cache blocks", "kvsieve");
  app.require_subcommand(1);
  app.set_version_flag("--version", kvsieve::version());
  int exit_code = success;
  add_run_command(app, exit_code);
  add_generate_command(app, exit_code);
  add_info_command(app, exit_code);
  add_demo_command(app, exit_code);
  add_bench_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return bad_input;
  }
  return exit_code;
}

/// The same, with what it throws reported.
int run_and_report(int argc, char** argv) {
  try {
    return run_command(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("kvsieve: not enough memory\n", stderr);
  } catch (const std::exception& error) {
    // A failed write may throw too; it is reported by whoever flushes.
    if (std::ferror(stdout) == 0) std::fprintf(stderr, "kvsieve: %s\n", error.what());
  }
  return bad_input;
}

/// Standard output is buffered, so that a full disk may show at the last flush alone. False, with a line on stderr,
/// when some of the output is lost.
bool flush_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !failed_before) return true;
  const char* const reason = errno != 0 ? std::strerror(errno) : "an earlier write failed";
  std::fprintf(stderr, "kvsieve: standard output cannot be written: %s\n", reason);
  return false;
}

}  // namespace
}  // namespace kvsieve::tools

int main(int argc, char** argv) {
  const int exit_code = kvsieve::tools::run_and_report(argc, argv);
  return kvsieve::tools::flush_output() ? exit_code : kvsieve::tools::bad_input;
}
