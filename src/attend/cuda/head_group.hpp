// SPDX-License-Identifier: Apache-2.0
//
// The query heads that share a KV head, and how a tile's (token, head) rows are numbered: token by token.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace kvsieve::cuda {

struct HeadGroup {
  int size = 1;                   ///< query heads of a KV head
  std::uint32_t inverse = 65537;  ///< 2^16 / size + 1: for rows below 1024, row / size is (row * this) >> 16

  HeadGroup() = default;
  explicit HeadGroup(std::int64_t heads)
      : size(static_cast<int>(heads)), inverse((1u << 16) / static_cast<std::uint32_t>(heads) + 1) {}
};

/// Row `row` of a tile, or of a warpgroup's share of one.
struct TokenHead {
  int token, head;
  KVSIEVE_HOST_DEVICE TokenHead(const HeadGroup& group, int row)
      : token(static_cast<int>(static_cast<std::uint32_t>(row) * group.inverse >> 16)),
        head(row - token * group.size) {}
};

}  // namespace kvsieve::cuda
