// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/generate_options.hpp"

namespace kvsieve::io {

/// A random case: values from a standard normal distribution, selections that are local in time, page tables that are
/// random permutations. The same for equal options on every platform. All KV memory that no request owns (past the end
/// of a sequence, in unused pages, in gaps) is NaN. Throws ArgumentError for options that make no sense.
Case generate_case(const GenerateOptions& options);

/// The index tensors of the same case. q, K and V are described but have no memory, for callers that put values of
/// their own behind them: a cache of tens of gigabytes belongs on a device only. Such tensors are row-major, so a
/// layout or gap that is not is an ArgumentError.
Case generate_indices(const GenerateOptions& options);

}  // namespace kvsieve::io
