// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set that the CPU kernel is compiled for and this machine has, not just the best one.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "attend/cpu/kernel.hpp"
#include "io/generate.hpp"
#include "support/case_tools.hpp"
#include "support/random_options.hpp"

namespace kvsieve::test {
namespace {

class SimdTargets : public testing::Test {
 protected:
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);  // all of the machine's again
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_F(SimdTargets, AllMatchTheReference) {
  const auto machine_targets = static_cast<std::uint64_t>(hwy::SupportedTargets());
  std::string tested;
  for (std::uint64_t bit = 1; bit != 0 && bit <= machine_targets; bit <<= 1) {
    const auto target = static_cast<std::int64_t>(bit);
    if ((machine_targets & bit) == 0 || (HWY_TARGETS & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    if (std::string(hwy::TargetName(target)) != cpu::simd_target()) continue;  // the kernel leaves this one out
    tested += std::string(" ") + cpu::simd_target();
    constexpr std::uint64_t first_seed = 9000;
    constexpr std::uint64_t configurations = 150;
    for (std::uint64_t i = 0; i < configurations; ++i) {
      const RandomCall call = random_call(first_seed + i);
      const std::string failure =
          check_against_reference(io::generate_case(call.options), call.call_options, call.with_lse);
      EXPECT_EQ(failure, "") << cpu::simd_target() << ", seed " << first_seed + i;
    }
  }
  EXPECT_NE(tested, "");
  RecordProperty("targets", tested);
  std::cout << "instruction sets:" << tested << "\n";
}

}  // namespace
}  // namespace kvsieve::test
