// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer over case files (case_file_target.hpp has the property). The mutator keeps the header's length right, since
// almost every other input would end at that check.
#include <algorithm>
#include <random>
#include <vector>

#include "case_file_target.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

constexpr std::size_t length_bytes = 8;

/// Length of the header if the input is a file with a whole one, its size minus 8 otherwise.
std::size_t header_length(const std::uint8_t* data, std::size_t size) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::uint64_t>(data[i]) << (8 * i);
  return static_cast<std::size_t>(std::min<std::uint64_t>(length, size - length_bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvsieve::fuzz::check_case_file(data, size);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  std::minstd_rand random(seed);
  if (size < length_bytes || random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t length = header_length(data, size);
  std::vector<std::uint8_t> header(data + length_bytes, data + length_bytes + length);
  std::vector<std::uint8_t> rest(data + length_bytes + length, data + size);
  std::vector<std::uint8_t>& part = random() % 4 != 0 ? header : rest;
  const std::size_t old_size = part.size();
  part.resize(old_size + (max_size - size));
  part.resize(LLVMFuzzerMutate(part.data(), old_size, part.size()));
  for (std::size_t i = 0; i < length_bytes; ++i) {
    data[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  }
  std::copy(header.begin(), header.end(), data + length_bytes);
  std::copy(rest.begin(), rest.end(), data + length_bytes + header.size());
  return length_bytes + header.size() + rest.size();
}
