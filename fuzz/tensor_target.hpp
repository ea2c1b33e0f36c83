// SPDX-License-Identifier: Apache-2.0
//
// The property that fuzz_tensor looks for violations of, apart from libFuzzer so that the test suite can replay the
// corpus.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsieve::fuzz {

/// Decodes the bytes into a call (MSA, QSA or merge): arguments that are right, some of whose fields are then replaced.
/// Either the host checks refuse the call, or it runs, on memory that has exactly the extents that the tensors describe
/// and in which the index tensors hold garbage too, and its outputs agree with the reference. Aborts when they do not;
/// AddressSanitizer sees every access outside a tensor. Returns whether the call was run.
bool check_tensor_arguments(const std::uint8_t* data, std::size_t size);

}  // namespace kvsieve::fuzz
