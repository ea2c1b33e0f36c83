// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/random.hpp"

namespace kvsieve::io {

/// Block selections of the successive tokens of a request. Real selections are local in time: a token keeps its
/// predecessor's selection, except that each entry is replaced with some probability by a uniformly random visible
/// block that is not chosen already. Probability 1 gives independent selections.
class SelectionWalk {
 public:
  /// `keep_newest`: the newest visible block is always chosen (MSA).
  SelectionWalk(std::int64_t topk, double replacement, bool keep_newest, Random random)
      : topk_(topk), replacement_(replacement), keep_newest_(keep_newest), random_(random) {}

  /// Distinct ids in [0, visible) for the next token: min(topk, visible) of them. Valid until the next call.
  std::span<const std::int32_t> next(std::int64_t visible);

 private:
  void start_over(std::int64_t visible);
  void replace_some(std::int64_t visible);
  void grow(std::int64_t size, std::int64_t visible);
  void include_newest(std::int64_t newest);
  /// Puts a random visible block that is not chosen in slot i, whose present block is given up.
  void replace(std::size_t slot, std::int64_t visible);
  std::int32_t unchosen(std::int64_t visible);

  std::int64_t topk_;
  double replacement_;
  bool keep_newest_;
  Random random_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> chosen_;  ///< by block id
  std::int64_t last_visible_ = 0;
};

}  // namespace kvsieve::io
