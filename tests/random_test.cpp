// SPDX-License-Identifier: Apache-2.0
//
// Random calls of the CPU backend against the float64 reference, from a fixed seed. A failure prints the command that
// writes the case to a file. Configurations are numbered; --gtest_filter picks a shard of them, and
//
//   KVSIEVE_RANDOM_CONFIGS=N  runs the first N of all shards together (default 3200),
//   KVSIEVE_RANDOM_FIRST=N    starts at configuration N of the shard.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "io/generate.hpp"
#include "io/random.hpp"
#include "kvsieve/kvsieve.hpp"
#include "reference/reference.hpp"
#include "support/case_tools.hpp"
#include "support/random_options.hpp"

namespace kvsieve::test {
namespace {

constexpr int num_shards = 8;

std::int64_t environment_number(const char* name, std::int64_t standard) {
  const char* const text = std::getenv(name);
  return text == nullptr ? standard : std::strtoll(text, nullptr, 10);
}

/// Empty when the call is right, and reports as many bad index entries as the reference counts.
std::string check(const RandomCall& call) {
  const io::Case test_case = io::generate_case(call.options);
  std::string failure = check_against_reference(test_case, call.call_options, call.with_lse);
  if (!failure.empty()) return failure;
  const std::int64_t reported = reported_bad_indices(test_case, call.call_options);
  const std::int64_t wanted = reference_bad_indices(test_case);
  if (reported == wanted) return "";
  return "check_indices: got " + std::to_string(reported) + " bad entries, want " + std::to_string(wanted);
}

class RandomConfigurations : public testing::TestWithParam<int> {};

TEST_P(RandomConfigurations, AgreeWithTheReference) {
  const std::int64_t count = environment_number("KVSIEVE_RANDOM_CONFIGS", 3200) / num_shards;
  const std::int64_t first = environment_number("KVSIEVE_RANDOM_FIRST", 0);
  std::int64_t failures = 0;
  for (std::int64_t i = first; i < first + count && failures < 5; ++i) {
    const auto seed = static_cast<std::uint64_t>(i * num_shards + GetParam());
    const RandomCall call = random_call(seed);
    std::string failure;
    try {
      failure = check(call);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (failure.empty()) continue;
    ++failures;
    ADD_FAILURE() << failure << "\n  configuration " << seed << ", threads " << call.call_options.num_threads << "\n  "
                  << io::generate_command(call.options) << " --expected --output=case.safetensors"
                  << "\n  kvsieve run case.safetensors --path=cpu";
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, RandomConfigurations, testing::Range(0, num_shards));

// ---- merge_states --------------------------------------------------------------------------------------------------

TEST(RandomMerges, AgreeWithTheReference) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    io::Random random(seed);
    const auto any_of = [&](std::initializer_list<DType> dtypes) {
      return dtypes.begin()[random.below(dtypes.size())];
    };
    const std::int64_t states = random.below(6), rows = random.below(9), heads = 1 + random.below(12);
    const std::int64_t head_dim = random.chance(0.5) ? 64 << random.below(3) : 1 + random.below(600);
    const DType state_dtype = any_of({DType::f32, DType::bf16, DType::f16});
    const std::int64_t gap = random.below(3);
    const auto outs = io::make_tensor(state_dtype, std::array{states, rows, heads, head_dim}, 1, gap);
    const auto lses = io::make_tensor(DType::f32, std::array{states, rows, heads}, 1, gap);
    std::int64_t index = 0;
    io::for_each_run(lses.view, [&](std::int64_t offset) {
      for (std::int64_t head = 0; head < heads; ++head) {
        static_cast<float*>(lses.view.data)[offset + head] = random.chance(0.3) ? -infinity : 8.0f * random.normal();
      }
    });
    io::for_each_run(outs.view, [&](std::int64_t offset) {  // an empty state's output stays NaN
      const std::int64_t pair = index++;
      const std::int64_t lse_offset =
          pair / (rows * heads) * lses.view.stride[0] + pair / heads % rows * lses.view.stride[1] + pair % heads;
      if (static_cast<float*>(lses.view.data)[lse_offset] == -infinity) return;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        store_from_float(outs.view.data, state_dtype, offset + d, random.normal());
      }
    });

    MergeArguments a{outs.view, lses.view, {}, {}};
    const auto want = io::make_tensor(DType::f32, std::array{rows, heads, head_dim});
    const auto want_lse = io::make_tensor(DType::f32, std::array{rows, heads});
    a.out = want.view;
    a.lse = want_lse.view;
    reference::merge(a);
    const auto got =
        io::make_tensor(any_of({DType::f32, DType::bf16, DType::f16}), std::array{rows, heads, head_dim}, 1, gap);
    const auto got_lse = io::make_tensor(DType::f32, std::array{rows, heads}, 1, gap);
    a.out = got.view;
    a.lse = random.chance(0.2) ? Tensor() : got_lse.view;
    merge_states(a, cpu_options(static_cast<int>(random.below(4))));
    const io::Tolerance tolerance = io::tolerance_for(got.view.dtype);
    ASSERT_EQ(io::describe(io::compare_out(got.view, want.view), tolerance), "") << "seed " << seed;
    ASSERT_TRUE(io::gaps_intact(got)) << "seed " << seed;
    if (!a.lse.defined()) continue;
    ASSERT_EQ(io::describe(io::compare_lse(got_lse.view, want_lse.view), tolerance), "") << "seed " << seed;
    ASSERT_TRUE(io::gaps_intact(got_lse)) << "seed " << seed;
  }
}

// ---- Rows in any memory order --------------------------------------------------------------------------------------

/// A tensor of rows stored head by head instead, with room between the heads.
struct HeadMajor {
  std::vector<std::uint8_t> memory;
  Tensor view;
};
HeadMajor head_major(const Tensor& t, bool copy) {
  const int head = t.dtype == DType::f32 ? t.rank - 1 : t.rank - 2;  // lse has no last dimension D
  const std::int64_t run = head == t.rank - 1 ? 1 : t.shape[t.rank - 1];
  HeadMajor result;
  result.view = t;
  std::int64_t rows = 1;
  for (int i = head - 1; i >= 0; --i) {
    result.view.stride[i] = rows * run;
    rows *= t.shape[i];
  }
  result.view.stride[head] = rows * run + 5;
  result.memory.assign((rows * run + 5) * t.shape[head] * dtype_size(t.dtype), 0xFF);
  result.view.data = result.memory.data();
  if (copy) io::copy_elements(t, result.view);
  return result;
}

TEST(RowStrides, HeadMajorQueriesAndOutputsGiveTheSameBits) {
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa}) {
    for (const bool packed : {true, false}) {
      io::GenerateOptions o;
      o.operation = operation;
      o.batch_size = 2;
      o.query_lengths = {6};
      o.kv_lengths = {90, 40};
      o.num_qo_heads = 6;
      o.num_kv_heads = 2;
      o.head_dim = 64;
      o.block_size = 8;
      o.page_size = 16;
      o.topk = 4;
      o.packed = packed;
      o.group_size = 3;
      o.gate = true;
      if (operation != io::Operation::qsa) o.lse_temperature_scale = 0.5f;
      const io::Case row_major = io::generate_case(o);
      io::CaseRun expected(row_major, cpu_options(2));
      expected.execute();

      HeadMajor q = head_major(row_major.q(), true), out = head_major(expected.out(), false);
      HeadMajor lse = head_major(expected.lse(), false);
      std::vector<char> workspace(expected.workspace_size());
      CallOptions options = cpu_options(2);
      options.workspace = {workspace.data(), workspace.size()};
      if (row_major.is_msa()) {
        HeadMajor lse_t = head_major(expected.lse_t(), false);
        MsaArguments a = expected.msa();
        a.q = q.view;
        a.out = out.view;
        a.lse = lse.view;
        a.lse_t = lse_t.view;
        row_major.decode() ? msa_sparse_decode_attention(a, options) : msa_sparse_attention(a, options);
        EXPECT_EQ(io::compare_lse(lse_t.view, expected.lse_t()).absolute, 0.0);
      } else {
        HeadMajor gate = head_major(row_major.qsa.output_gate, true);
        QsaArguments a = expected.qsa();
        a.q = q.view;
        a.output_gate = gate.view;
        a.out = out.view;
        a.lse = lse.view;
        QsaConfig config = row_major.qsa_config;
        config.num_threads = 2;
        QsaPlan(config).run(a, options);
      }
      EXPECT_EQ(io::compare_out(out.view, expected.out()).frobenius, 0.0);
      EXPECT_EQ(io::compare_out(out.view, expected.out()).non_finite, 0);
      EXPECT_EQ(io::compare_lse(lse.view, expected.lse()).absolute, 0.0);
      EXPECT_EQ(io::compare_lse(lse.view, expected.lse()).mismatched, 0);
    }
  }
}

// ---- The models' shapes, on sampled rows ---------------------------------------------------------------------------

struct ModelShape {
  const char* name;
  io::Operation operation;
  std::int64_t batch_size, query_length, kv_length;
  DType kv_dtype;
};

class ModelShapes : public testing::TestWithParam<ModelShape> {};

TEST_P(ModelShapes, SampledRowsAgreeWithTheReference) {
  const ModelShape shape = GetParam();
  io::GenerateOptions o;
  o.operation = shape.operation;
  o.batch_size = shape.batch_size;
  o.query_lengths = {shape.query_length};
  o.kv_lengths = {shape.kv_length};
  o.kv_dtype = shape.kv_dtype;
  o.group_size = 8;
  o.seed = 1234;
  io::CaseRun run(io::generate_case(o), cpu_options());
  run.poison_outputs();
  run.execute();

  const std::int64_t heads = run.lse().shape[1], head_dim = run.out().shape[2], rows = run.out().shape[0];
  constexpr std::int64_t samples = 6;
  std::vector<double> out(heads * head_dim), lse(heads);
  std::vector<float> want_out(samples * heads * head_dim), want_lse(samples * heads);
  std::vector<float> got_out(want_out.size()), got_lse(want_lse.size());
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t row = i * (rows - 1) / (samples - 1);
    const reference::Row result{out.data(), lse.data(), nullptr};
    if (run.test_case().is_msa()) {
      reference::msa_row(run.msa(), run.test_case().decode(), row, result);
    } else {
      reference::qsa_row(run.test_case().qsa_config, run.qsa(), row, result);
    }
    for (std::int64_t j = 0; j < heads * head_dim; ++j) {
      want_out[i * heads * head_dim + j] = static_cast<float>(out[j]);
      got_out[i * heads * head_dim + j] = load_as_float(run.out().data, run.out().dtype, row * heads * head_dim + j);
    }
    for (std::int64_t j = 0; j < heads; ++j) {
      want_lse[i * heads + j] = static_cast<float>(lse[j]);
      got_lse[i * heads + j] = load_as_float(run.lse().data, DType::f32, row * heads + j);
    }
  }
  const auto floats = [](const std::vector<float>& v) {
    return Tensor(v.data(), DType::f32, {static_cast<std::int64_t>(v.size())});
  };
  const io::Tolerance tolerance = io::tolerance_for(run.out().dtype);
  EXPECT_EQ(io::describe(io::compare_out(floats(got_out), floats(want_out)), tolerance), "");
  EXPECT_EQ(io::describe(io::compare_lse(floats(got_lse), floats(want_lse)), tolerance), "");
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelShapes,
    testing::Values(ModelShape{"MsaPrefill", io::Operation::msa_prefill, 1, 192, 6000, DType::bf16},
                    ModelShape{"MsaPrefillFp8", io::Operation::msa_prefill, 2, 64, 3000, DType::f8_e4m3},
                    ModelShape{"MsaDecode", io::Operation::msa_decode, 4, 2, 5000, DType::bf16},
                    ModelShape{"QsaPrefill", io::Operation::qsa, 1, 192, 6000, DType::bf16},
                    ModelShape{"QsaDecodeFp8", io::Operation::qsa, 8, 1, 5000, DType::f8_e4m3}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvsieve::test
