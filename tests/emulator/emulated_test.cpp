// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernels in the emulator against the float64 reference: calls of several tiles, chunks and requests, as
// the kernels' branches want them. tests/emulator/attend_emulated.cpp is behind the CPU path here.
//
//   KVSIEVE_EMULATED_CONFIGS=N  runs N random calls (default 80), KVSIEVE_EMULATED_FIRST=N starts at call N.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>

#include "emulator/calls.hpp"
#include "io/generate.hpp"
#include "io/random.hpp"
#include "support/case_tools.hpp"

namespace kvsieve::test {
namespace {

std::int64_t environment_number(const char* name, std::int64_t standard) {
  const char* const text = std::getenv(name);
  return text == nullptr ? standard : std::strtoll(text, nullptr, 10);
}

/// A call that the Hopper kernel takes.
io::GenerateOptions kernel_call(std::uint64_t seed) {
  io::Random random(seed);
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random.below(values.size())];
  };
  io::GenerateOptions o;
  o.seed = seed;
  const std::int64_t kind = random.below(4);
  o.operation = kind == 0 ? io::Operation::msa_prefill : kind == 1 ? io::Operation::msa_decode : io::Operation::qsa;
  const bool qsa = o.operation == io::Operation::qsa;
  const std::int64_t group = one_of({16, 12, 12, 8, 5, 4, 2, 1});
  o.num_kv_heads = 1 + random.below(2);
  o.num_qo_heads = group * o.num_kv_heads;
  o.head_dim = one_of({64, 128, 128, 256});
  o.batch_size = 1 + random.below(3);
  const bool decode = o.operation == io::Operation::msa_decode || random.chance(0.3);
  const std::int64_t rows = decode ? 1 + random.below(8) : 1 + random.below(40);
  o.query_lengths = {rows};
  o.kv_lengths.clear();
  for (std::int64_t b = 0; b < o.batch_size; ++b) o.kv_lengths.push_back(rows + random.below(qsa ? 700 : 1800));
  if (qsa) {
    o.block_size = one_of({4, 4, 8, 16, 64});
    o.topk = 1 + random.below(700 / o.block_size);
    o.page_size = one_of({64, 128});
    o.packed = random.chance(0.5);
    o.group_size = o.packed ? 1 + random.below(4) : 1;
    o.gate = random.chance(0.3);
    o.per_head_patterns = random.chance(0.3);
  } else {
    o.block_size = one_of({128, 128, 64});
    o.topk = 1 + random.below(12);
    o.page_size = random.chance(0.3) ? 0 : one_of({128, 256});
    o.causal = random.chance(0.7);
    o.valid_prefix = random.chance(0.3);
  }
  o.q_dtype = random.chance(0.7) ? DType::bf16 : DType::f16;
  if (random.chance(0.4)) o.kv_dtype = DType::f8_e4m3;
  if (qsa && random.chance(0.15)) {
    o.q_dtype = o.kv_dtype = DType::f8_e4m3;
  }
  if (random.chance(0.2)) o.softmax_scale = random.chance(0.5) ? -0.1f : 0.0f;
  if (random.chance(0.3)) o.query_amplitude = 30.0f;
  o.replacement = static_cast<double>(one_of({0, 5, 50, 100})) / 100.0;
  if (random.chance(0.3)) o.hostile = 0.2;
  o.spare_pages = random.below(3);
  return o;
}

TEST(Emulated, HopperKernelsAgreeWithTheReference) {
  const std::int64_t first = environment_number("KVSIEVE_EMULATED_FIRST", 0);
  const std::int64_t count = environment_number("KVSIEVE_EMULATED_CONFIGS", 80);
  std::int64_t failures = 0;
  for (std::int64_t i = first; i < first + count && failures < 5; ++i) {
    const io::GenerateOptions options = kernel_call(static_cast<std::uint64_t>(i));
    const std::int64_t elsewhere = emulator::calls_elsewhere;
    std::string failure;
    try {
      failure = check_against_reference(io::generate_case(options), cpu_options(1));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (failure.empty() && emulator::calls_elsewhere != elsewhere) failure = "the Hopper kernel does not take the call";
    if (failure.empty()) continue;
    ++failures;
    ADD_FAILURE() << failure << "\n  call " << i << "\n  " << io::generate_command(options);
  }
  EXPECT_GT(emulator::calls_emulated, 0);
}

}  // namespace
}  // namespace kvsieve::test
