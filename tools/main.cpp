// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
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

}  // namespace
}  // namespace kvsieve::tools

int main(int argc, char** argv) {
  try {
    return kvsieve::tools::run_command(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("kvsieve: not enough memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvsieve: %s\n", error.what());
  }
  return kvsieve::tools::bad_input;
}
