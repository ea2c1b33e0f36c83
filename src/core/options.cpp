// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/options.hpp"

#include <array>
#include <string>
#include <utility>

#include "kvsieve/error.hpp"

namespace kvsieve {
namespace {

constexpr std::array<std::pair<Path, std::string_view>, 5> path_names = {{{Path::automatic, "auto"},
                                                                          {Path::reference, "reference"},
                                                                          {Path::cpu, "cpu"},
                                                                          {Path::cuda_portable, "cuda_portable"},
                                                                          {Path::cuda_sm90, "cuda_sm90"}}};

}  // namespace

std::string_view path_name(Path path) noexcept {
  for (const auto& [value, name] : path_names) {
    if (value == path) return name;
  }
  return "unknown";
}

Path path_from_name(std::string_view name) {
  for (const auto& [value, text] : path_names) {
    if (text == name) return value;
  }
  throw ArgumentError("path", "\"" + std::string(name) + "\"", "auto, reference, cpu, cuda_portable or cuda_sm90");
}

}  // namespace kvsieve
