// SPDX-License-Identifier: Apache-2.0
//
// The property that fuzz_case_file looks for violations of, apart from libFuzzer so that the test suite can replay the
// corpus.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsieve::fuzz {

/// Reads the bytes as a case file. Either they are refused with one line, or the case survives being written and read
/// again, and, when it is small enough, the library refuses it with one line or runs it on the CPU without writing
/// outside its outputs. Aborts when that is not so. Returns whether the case was run.
bool check_case_file(const std::uint8_t* data, std::size_t size);

}  // namespace kvsieve::fuzz
