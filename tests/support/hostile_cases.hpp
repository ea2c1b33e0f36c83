// SPDX-License-Identifier: Apache-2.0
//
// Hostile calls that every path is tested with: garbage for index tensors, and rows and requests without keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "io/case.hpp"
#include "io/generate_options.hpp"
#include "io/random.hpp"
#include "kvsieve/msa.hpp"
#include "kvsieve/qsa.hpp"

namespace kvsieve::test {

/// Smallest and largest entry of an i32 tensor.
inline constexpr std::int64_t int_min = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int64_t int_max = std::numeric_limits<std::int32_t>::max();

/// An MSA prefill of one row, with small blocks and pages.
io::GenerateOptions small_msa();

// ---- Garbage in index tensors --------------------------------------------------------------------------------------

/// Entries that are out of range in most index tensors of a case: just before the first one that is not, just past the
/// last one (page or token), and at the ends of 32 bits.
std::array<std::int64_t, 5> bad_entries(const io::Case& test_case);

/// Puts `bad` everywhere, or at a random place, in the index input with this number in index_inputs_of(). Says what was
/// done: "page_table[:] = -1".
std::string spoil_input(io::Case& test_case, std::size_t input, std::int64_t bad, bool everywhere, io::Random& random);

/// Replaces each entry of each index input by garbage with a probability of `rate`: out of range, or in range and
/// wrong.
void spoil_all_inputs(io::Case& test_case, double rate, io::Random& random);

// ---- Rows and requests without keys --------------------------------------------------------------------------------

/// A case, and how many of its rows have no key.
struct CaseWithEmptyRows {
  io::Case test_case;
  std::int64_t empty_rows = 0;
};

/// Decode as engines pad a batch: requests of length 0, or of fewer keys than rows, whose rows sit at negative
/// positions.
CaseWithEmptyRows padded_decode(std::int64_t head_dim);

/// Ids in descending order: the first ones are after the row's position, the last one is not.
CaseWithEmptyRows first_blocks_masked(std::int64_t first_position);

/// Rows that select nothing but blocks after their position.
CaseWithEmptyRows only_masked_blocks();

/// A legal decode call without rows, requests, pages or ids, for a device. `scale`: one f32 there.
MsaArguments msa_of_nothing(Device device, const Tensor& scale);

/// The same of QSA, packed. `starts`: the one element of qo_indptr, there.
struct QsaOfNothing {
  QsaConfig config;
  QsaArguments arguments;
};
QsaOfNothing qsa_of_nothing(Device device, const Tensor& starts);

/// Requests whose page table has no columns.
CaseWithEmptyRows page_table_without_columns(io::Operation operation);

}  // namespace kvsieve::test
