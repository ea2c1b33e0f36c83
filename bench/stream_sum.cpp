// SPDX-License-Identifier: Apache-2.0
#include "bench/stream_sum.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/stream_sum.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h includes this file again for each target, so it has to come before highway.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

std::uint64_t StreamSum(const std::uint64_t* HWY_RESTRICT words, std::size_t count) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  // Eight independent sums, so that only the loads take time.
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (std::size_t i = 0; i < count; i += 8 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, words + i));
    s1 = hn::Add(s1, hn::LoadU(d, words + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, words + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, words + i + 3 * lanes));
    s4 = hn::Add(s4, hn::LoadU(d, words + i + 4 * lanes));
    s5 = hn::Add(s5, hn::LoadU(d, words + i + 5 * lanes));
    s6 = hn::Add(s6, hn::LoadU(d, words + i + 6 * lanes));
    s7 = hn::Add(s7, hn::LoadU(d, words + i + 7 * lanes));
  }
  const auto low = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), high = hn::Add(hn::Add(s4, s5), hn::Add(s6, s7));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::bench {

HWY_EXPORT(StreamSum);

std::uint64_t stream_sum(const std::uint64_t* words, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(StreamSum)(words, count);
}

}  // namespace kvsieve::bench
#endif
