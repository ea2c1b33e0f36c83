// SPDX-License-Identifier: Apache-2.0
//
// The host's routes in a form that tests compare those of the device with.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "core/problem.hpp"

namespace kvsieve::test {

inline constexpr std::int64_t max_tile_rows = 32;  ///< a membership bit each

/// The blocks of a tile: (request, block) -> (page, slot, members).
using Blocks = std::map<std::pair<std::int32_t, std::int32_t>, std::tuple<std::int32_t, std::int32_t, std::uint32_t>>;

/// The host's routes of a window of rows, which it cuts by request, as one.
Blocks host_blocks(const AttentionProblem& problem, std::int64_t kv_head, std::int64_t row_begin, std::int64_t row_end);

/// Blocks that a request can have, by the size of its tables.
std::int64_t most_blocks(const AttentionProblem& problem);

}  // namespace kvsieve::test
