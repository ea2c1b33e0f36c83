// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "kvsieve/info.hpp"

namespace kvsieve::tools {
namespace {

void print_json(const Info& info) {
  nlohmann::ordered_json document = {{"version", info.version},         {"devices", info.devices},
                                     {"simd_target", info.simd_target}, {"bf16_dot", info.bf16_dot},
                                     {"num_threads", info.num_threads}, {"paths", nlohmann::ordered_json::array()}};
  for (const PathInfo& path : info.paths) {
    document["paths"].push_back(
        {{"path", path_name(path.path)}, {"available", path.available}, {"detail", path.detail}});
  }
  fmt::print("{}\n", document.dump(2));
}

void print_text(const Info& info) {
  fmt::print("kvsieve {}\n", info.version);
  fmt::print("devices      {}\n", fmt::join(info.devices, ", "));
  fmt::print("SIMD target  {}{}\n", info.simd_target, info.bf16_dot ? ", BF16 dot products" : "");
  fmt::print("threads      {}\n", info.num_threads);
  for (const PathInfo& path : info.paths) {
    fmt::print("path {:<14} {:<4} {}\n", path_name(path.path), path.available ? "yes" : "no", path.detail);
  }
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("info", "Version, devices, and which paths are available here");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON document");
  command->callback([json, &exit_code] {
    if (*json) {
      print_json(info());
    } else {
      print_text(info());
    }
    exit_code = success;
  });
}

}  // namespace kvsieve::tools
