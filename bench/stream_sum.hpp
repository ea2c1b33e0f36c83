// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsieve::bench {

/// Sum of the words, read with the widest vectors of this CPU. `count` is a multiple of 128.
std::uint64_t stream_sum(const std::uint64_t* words, std::size_t count);

}  // namespace kvsieve::bench
