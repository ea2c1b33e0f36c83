// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvsieve::io {

/// splitmix64: small, fast, and the same on every platform, as are the transforms below, which use integers and one
/// exact multiplication only.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// One of many unrelated streams of a seed.
  Random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index = 0)
      : state_(mix(mix(seed + increment * (stream + 1)) + increment * index)) {}

  std::uint64_t next() { return mix(state_ += increment); }

  /// Uniform in [0, bound), bound > 0. The bias of the multiplication is below 2^-32 for 32-bit bounds.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>((static_cast<unsigned __int128>(next()) * static_cast<std::uint64_t>(bound)) >>
                                     64);
  }

  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

  /// Close to a standard normal: the sum of 12 uniform 16-bit numbers, whose variance is 1, so within +-6.
  float normal() {
    const std::uint64_t sum = halves(next()) + halves(next()) + halves(next());
    return static_cast<float>(static_cast<std::int64_t>(sum) - mean) * 0x1p-16f;
  }

 private:
  static constexpr std::uint64_t increment = 0x9E3779B97F4A7C15;
  static constexpr std::int64_t mean = 12 * 0xFFFF / 2;

  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  /// Sum of the four 16-bit parts.
  static std::uint64_t halves(std::uint64_t x) {
    const std::uint64_t pairs = (x & 0x0000FFFF0000FFFF) + ((x >> 16) & 0x0000FFFF0000FFFF);
    return (pairs & 0xFFFFFFFF) + (pairs >> 32);
  }

  std::uint64_t state_;
};

}  // namespace kvsieve::io
