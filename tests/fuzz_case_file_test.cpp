// SPDX-License-Identifier: Apache-2.0
//
// Replays the seeds and findings of fuzz_case_file, and every truncation and many single-byte changes of the small
// ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "case_file_target.hpp"
#include "io/random.hpp"

namespace kvsieve::fuzz {
namespace {

struct Input {
  std::string name;
  std::vector<std::uint8_t> bytes;
};

std::vector<Input> corpus() {
  std::vector<Input> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(KVSIEVE_TEST_DATA "/fuzz_corpus/case_file")) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.push_back({entry.path().filename().string(), {std::istreambuf_iterator<char>(file), {}}});
  }
  std::sort(inputs.begin(), inputs.end(), [](const Input& a, const Input& b) { return a.name < b.name; });
  return inputs;
}

TEST(FuzzCaseFile, Corpus) {
  int runs = 0;
  for (const Input& input : corpus()) {
    SCOPED_TRACE(input.name);
    const bool ran = check_case_file(input.bytes.data(), input.bytes.size());
    if (input.name.ends_with(".safetensors")) {
      EXPECT_TRUE(ran);
    }
    if (input.name.starts_with("broken_")) {
      EXPECT_FALSE(ran);
    }
    runs += ran ? 1 : 0;
  }
  EXPECT_GE(runs, 8);
}

TEST(FuzzCaseFile, Truncations) {
  for (const Input& input : corpus()) {
    SCOPED_TRACE(input.name);
    for (std::size_t size = 0; size < input.bytes.size(); size += 1 + size / 64) {
      EXPECT_FALSE(check_case_file(input.bytes.data(), size));
    }
  }
}

TEST(FuzzCaseFile, ChangedBytes) {
  io::Random random(1);
  int runs = 0;
  for (const Input& input : corpus()) {
    SCOPED_TRACE(input.name);
    for (int i = 0; i < 300; ++i) {
      std::vector<std::uint8_t> bytes = input.bytes;
      bytes[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(bytes.size())))] ^=
          static_cast<std::uint8_t>(1 << random.below(8));
      runs += check_case_file(bytes.data(), bytes.size()) ? 1 : 0;
    }
  }
  EXPECT_GT(runs, 500);  // changes of the data alone leave a case that runs
}

}  // namespace
}  // namespace kvsieve::fuzz
