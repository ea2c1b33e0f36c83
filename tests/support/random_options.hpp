// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "io/generate_options.hpp"
#include "kvsieve/options.hpp"

namespace kvsieve::test {

/// A call of the CPU backend on a generated case.
struct RandomCall {
  io::GenerateOptions options;
  CallOptions call_options;
  bool with_lse = true;
};

/// A small random call: any operation, dtype, memory layout, shape and option, now and then with no rows, no requests
/// or no ids, or with garbage in the index tensors. The float64 reference computes it in some hundred milliseconds at
/// most.
RandomCall random_call(std::uint64_t seed);

}  // namespace kvsieve::test
