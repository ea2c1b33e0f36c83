// SPDX-License-Identifier: Apache-2.0
#include "bench/host.hpp"

#include <fmt/chrono.h>

#include <ctime>
#include <fstream>

#include "commit.hpp"

namespace kvsieve::bench {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

Provenance provenance() {
  return {KVSIEVE_COMMIT, fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr))), cpu_model()};
}

}  // namespace kvsieve::bench
