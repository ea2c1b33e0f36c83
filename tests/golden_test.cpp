// SPDX-License-Identifier: Apache-2.0
//
// The golden cases: expected values from an independent float64 oracle, met by every CPU path.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "io/case_run.hpp"

namespace kvsieve::io {
namespace {

std::vector<std::string> golden_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(KVSIEVE_TEST_DATA "/golden")) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string identifier(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}

TEST(GoldenFiles, AreAllHere) { EXPECT_GE(golden_files().size(), 15u); }

class Golden : public testing::TestWithParam<std::tuple<std::string, Path, int>> {};

TEST_P(Golden, MatchesTheOracle) {
  const auto& [file, path, threads] = GetParam();
  CallOptions options;
  options.path = path;
  options.num_threads = threads;
  const Case test_case = load_case(file);
  EXPECT_TRUE(test_case.ignored.empty()) << test_case.ignored.front();
  ASSERT_TRUE(test_case.expected.out.defined());
  ASSERT_TRUE(test_case.expected.lse.defined());
  CaseRun run(test_case, options);
  run.execute();
  const RunCheck check = check_run(run, test_case.expected);
  EXPECT_EQ(check.failure, "");
  ASSERT_TRUE(check.out && check.lse);
}

class GoldenLayouts : public testing::TestWithParam<std::tuple<std::string, Path>> {};

// Neither the caller's memory layout nor the route through a written file may change a result.
TEST_P(GoldenLayouts, MatchTheOracle) {
  const auto& [file, path] = GetParam();
  CallOptions options;
  options.path = path;
  const Case original = load_case(file);
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd, KvLayout::packed_nhd, KvLayout::packed_hnd}) {
    Case changed = original;
    changed.layout = {layout, 8, 3};
    const std::vector<std::byte> bytes = serialize_case(changed);
    CaseRun run(parse_case(bytes, std::string(kv_layout_name(layout))), options);
    const Tensor& k = run.test_case().k();
    const auto* const end_of_k_row =
        static_cast<const std::byte*>(k.data) + static_cast<std::size_t>(k.shape[k.rank - 1]) * dtype_size(k.dtype);
    EXPECT_EQ(is_packed(layout), run.test_case().v().data == end_of_k_row);
    run.execute();
    EXPECT_EQ(check_run(run, original.expected).failure, "") << kv_layout_name(layout);
  }
}

std::string case_and_path(const std::string& file, Path path) {
  return identifier(std::filesystem::path(file).stem().string() + "_" + std::string(path_name(path)));
}

INSTANTIATE_TEST_SUITE_P(Files, Golden,
                         testing::Combine(testing::ValuesIn(golden_files()),
                                          testing::Values(Path::reference, Path::cpu), testing::Values(1, 4)),
                         [](const auto& instance) {
                           return case_and_path(std::get<0>(instance.param), std::get<1>(instance.param)) + "_" +
                                  std::to_string(std::get<2>(instance.param));
                         });
INSTANTIATE_TEST_SUITE_P(Files, GoldenLayouts,
                         testing::Combine(testing::ValuesIn(golden_files()),
                                          testing::Values(Path::reference, Path::cpu)),
                         [](const auto& instance) {
                           return case_and_path(std::get<0>(instance.param), std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace kvsieve::io
