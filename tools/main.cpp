// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <exception>
#include <new>

#include "commands.hpp"
#include "kvsieve/info.hpp"

int main(int argc, char** argv) {
  using namespace kvsieve::tools;
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
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kvsieve: not enough memory\n");
    return bad_input;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvsieve: {}\n", error.what());
    return bad_input;
  }
  return exit_code;
}
