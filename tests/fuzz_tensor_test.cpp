// SPDX-License-Identifier: Apache-2.0
//
// Replays what fuzz_tensor has found, and random bytes besides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "io/random.hpp"
#include "tensor_target.hpp"

namespace kvsieve::fuzz {
namespace {

TEST(FuzzTensor, Corpus) {
  int inputs = 0, runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVSIEVE_TEST_DATA "/fuzz_corpus/tensor")) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    runs += check_tensor_arguments(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()) ? 1 : 0;
    ++inputs;
  }
  EXPECT_GT(inputs, 0);
  EXPECT_GT(runs, inputs / 10);  // calls that the checks refuse say little about the others
}

TEST(FuzzTensor, RandomBytes) {
  int runs = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    io::Random random(seed);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(random.below(40)));
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random.next()); });
    runs += check_tensor_arguments(bytes.data(), bytes.size()) ? 1 : 0;
  }
  EXPECT_GT(runs, 50);
}

}  // namespace
}  // namespace kvsieve::fuzz
