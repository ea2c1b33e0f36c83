// SPDX-License-Identifier: Apache-2.0
#include "support/hostile_cases.hpp"

#include <fmt/format.h>

#include "io/generate.hpp"
#include "support/case_tools.hpp"

namespace kvsieve::test {

io::GenerateOptions small_msa() {
  io::GenerateOptions o;
  o.num_qo_heads = 16;
  o.num_kv_heads = 2;
  o.head_dim = 128;
  o.block_size = 16;
  o.page_size = 32;
  o.topk = 3;
  o.seed = 11;
  return o;
}

std::array<std::int64_t, 5> bad_entries(const io::Case& test_case) {
  const Tensor& k = test_case.k();
  const std::int64_t tokens = k.rank == 4 ? k.shape[0] * k.shape[2] : k.shape[0];
  return {-1, k.shape[0], tokens + 1, int_min, int_max};
}

std::string spoil_input(io::Case& test_case, std::size_t input, std::int64_t bad, bool everywhere, io::Random& random) {
  const NamedTensor spoilt = index_inputs_of(test_case)[input];
  const std::int64_t size = spoilt.tensor->numel();
  const std::int64_t first = everywhere ? 0 : random.below(size);
  for (std::int64_t j = first; j < (everywhere ? size : first + 1); ++j) set_integer(*spoilt.tensor, j, bad);
  return fmt::format("{}[{}] = {}", spoilt.name, everywhere ? ":" : std::to_string(first), bad);
}

void spoil_all_inputs(io::Case& test_case, double rate, io::Random& random) {
  for (const NamedTensor& input : index_inputs_of(test_case)) {
    const std::array values = {std::int64_t{-1},
                               int_min,
                               int_max,
                               random.below(16),
                               random.below(1024),
                               -random.below(16),
                               std::int64_t{static_cast<std::int32_t>(random.next())}};
    for (std::int64_t j = 0; j < input.tensor->numel(); ++j) {
      if (!random.chance(rate)) continue;
      set_integer(*input.tensor, j, values[static_cast<std::size_t>(random.below(values.size()))]);
    }
  }
}

CaseWithEmptyRows padded_decode(std::int64_t head_dim) {
  io::GenerateOptions o = small_msa();
  o.head_dim = head_dim;
  o.operation = io::Operation::msa_decode;
  o.batch_size = 5;
  o.query_lengths = {4};
  o.kv_lengths = {40, 4, 50, 4, 4};
  CaseWithEmptyRows padded{io::generate_case(o), 4 + 2 + 4};
  const Tensor& lengths = padded.test_case.msa.seqused_k;
  set_integer(lengths, 1, 0);
  set_integer(lengths, 3, 2);  // two of its four rows are before the sequence
  set_integer(lengths, 4, 0);
  return padded;
}

CaseWithEmptyRows first_blocks_masked(std::int64_t first_position) {
  io::GenerateOptions o = small_msa();
  o.query_lengths = {20};
  o.kv_lengths = {100};
  o.topk = 7;
  o.q_offsets = {first_position};
  CaseWithEmptyRows masked{io::generate_case(o), 0};
  const Tensor& ids = masked.test_case.msa.q2k_indices;
  for (std::int64_t i = 0; i < ids.numel(); ++i) set_integer(ids, i, 6 - i % 7);
  return masked;
}

CaseWithEmptyRows only_masked_blocks() {
  io::GenerateOptions o = small_msa();
  o.query_lengths = {6};
  o.kv_lengths = {100};
  o.q_offsets = {30};
  CaseWithEmptyRows masked{io::generate_case(o), 2};  // the rows at 30 and 31; block 2 begins at 32
  const Tensor& ids = masked.test_case.msa.q2k_indices;
  for (std::int64_t i = 0; i < ids.numel(); ++i) set_integer(ids, i, 2 + i % 3);
  return masked;
}

MsaArguments msa_of_nothing(Device device, const Tensor& scale) {
  MsaArguments a;
  a.q = a.out = {nullptr, DType::bf16, {0, 8, 64}, device};
  a.k = a.v = {nullptr, DType::bf16, {0, 2, 128, 64}, device};
  a.page_table = {nullptr, DType::i32, {0, 0}, device};
  a.seqused_k = {nullptr, DType::i32, {0}, device};
  a.q2k_indices = {nullptr, DType::i32, {2, 0, 0}, device};
  a.lse = {nullptr, DType::f32, {0, 8}, device};
  a.v_global_scale = scale;
  return a;
}

QsaOfNothing qsa_of_nothing(Device device, const Tensor& starts) {
  QsaOfNothing call;
  call.config.device = device;
  call.config.num_qo_heads = 8;
  call.config.num_kv_heads = 2;
  call.config.head_dim = 64;
  call.config.block_topk = 0;
  call.config.use_packed_q = true;
  QsaArguments& a = call.arguments;
  a.q = a.out = {nullptr, DType::bf16, {0, 8, 64}, device};
  a.k_cache = a.v_cache = {nullptr, DType::bf16, {0, 2, 64, 64}, device};
  a.block_table = {nullptr, DType::i32, {0, 0}, device};
  a.indexer_block_ids = {nullptr, DType::i32, {0, 0}, device};
  a.token_to_request = a.query_positions = {nullptr, DType::i32, {0}, device};
  a.qo_indptr = starts;
  return call;
}

CaseWithEmptyRows page_table_without_columns(io::Operation operation) {
  constexpr std::int64_t rows = 3;
  io::GenerateOptions o = small_msa();
  o.operation = operation;
  o.query_lengths = {rows};
  o.kv_lengths = {40};
  CaseWithEmptyRows paged{io::generate_case(o), rows};
  io::Case& c = paged.test_case;
  (c.is_msa() ? c.msa.page_table : c.qsa.block_table) = Tensor(nullptr, DType::i32, {1, 0});
  return paged;
}

}  // namespace kvsieve::test
