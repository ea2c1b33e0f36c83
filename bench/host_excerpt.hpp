// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "io/case.hpp"

namespace kvsieve::bench {

/// Copies bytes from where the values of a case are to host memory.
using CopyToHost = std::function<void(void* to, const void* from, std::size_t bytes)>;

/// What the given rows read of a paged, row-major case whose indices are in host memory and whose values need not be:
/// the case with q, and with the pages of K and V that the rows can reach. All other pages are missing from its page
/// table. A cache of tens of gigabytes is so checked by copying a few hundred megabytes at most.
io::Case host_excerpt(const io::Case& test_case, const std::vector<std::int64_t>& rows, const CopyToHost& copy);

}  // namespace kvsieve::bench
