// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks count and check with. A wrong count would make every number in a table wrong.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "bench/child_process.hpp"
#include "bench/measure.hpp"
#include "bench/sample_check.hpp"
#include "bench/stream_sum.hpp"
#include "bench/work.hpp"
#include "bench/workload.hpp"
#include "io/case_run.hpp"
#include "io/generate.hpp"

namespace kvsieve::bench {
namespace {

const std::int32_t* ints(const Tensor& tensor) { return static_cast<const std::int32_t*>(tensor.data); }

/// Work by its definition, token by token.
struct Counted {
  std::int64_t triples = 0;                                               ///< (row, query head, key)
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> tokens;  ///< (KV head, request, key)

  void attend(std::int64_t kv_head, std::int64_t request, std::int64_t key, std::int64_t group) {
    triples += group;
    tokens.insert({kv_head, request, key});
  }
  Work work(const io::Case& c) const {
    const std::int64_t head_dim = c.q().shape[c.q().rank - 1];
    const auto kv_bytes =
        static_cast<std::int64_t>(tokens.size()) * 2 * head_dim * static_cast<std::int64_t>(dtype_size(c.k().dtype));
    const auto row_bytes =
        c.q().numel() * static_cast<std::int64_t>(dtype_size(c.q().dtype) + dtype_size(c.out_dtype()));
    return {4.0 * static_cast<double>(head_dim * triples), static_cast<double>(kv_bytes + row_bytes)};
  }
};

/// Of an MSA prefill of one request.
Work count_by_token(const io::Case& c) {
  const MsaArguments& a = c.msa;
  Counted counted;
  const std::int64_t rows = a.q.shape[0], length = ints(a.seqused_k)[0];
  for (std::int64_t head = 0; head < a.k.shape[1]; ++head) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int32_t* const ids = ints(a.q2k_indices) + (head * rows + row) * a.q2k_indices.shape[2];
      const std::set<std::int64_t> selected(ids, ids + a.q2k_indices.shape[2]);
      for (std::int64_t key = 0; key <= length - rows + row; ++key) {
        if (selected.contains(key / a.block_size)) counted.attend(head, 0, key, a.q.shape[1] / a.k.shape[1]);
      }
    }
  }
  return counted.work(c);
}

/// Of a QSA call with i32 positions and one list for all KV heads.
Work count_qsa_by_token(const io::Case& c) {
  const QsaArguments& a = c.qsa;
  Counted counted;
  for (std::int64_t row = 0; row < a.token_to_request.shape[0]; ++row) {
    const std::int64_t position = ints(a.query_positions)[row], done = (position + 1) / c.qsa_config.kv_block_size;
    const std::int32_t* const ids = ints(a.indexer_block_ids) + row * c.qsa_config.block_topk;
    const std::set<std::int64_t> selected(ids, ids + std::min(done, c.qsa_config.block_topk));
    for (std::int64_t key = 0; key <= position; ++key) {
      const std::int64_t block = key / c.qsa_config.kv_block_size;
      if (block < done && !selected.contains(block)) continue;
      for (std::int64_t head = 0; head < c.qsa_config.num_kv_heads; ++head) {
        counted.attend(head, ints(a.token_to_request)[row], key, c.qsa_config.num_qo_heads / c.qsa_config.num_kv_heads);
      }
    }
  }
  return counted.work(c);
}

void expect_equal(const Work& got, const Work& want) {
  EXPECT_EQ(got.flops, want.flops);
  EXPECT_EQ(got.unique_bytes, want.unique_bytes);
}

TEST(Work, MsaPrefill) {
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    Workload workload = msa_prefill(37, 3000, kv_dtype);
    workload.options.topk = 5;
    const io::Case c = io::generate_case(workload.options);
    expect_equal(count_work(c), count_by_token(c));
  }
}

TEST(Work, MsaDecodeThatSelectsEverything) {
  const io::Case c = io::generate_case(msa_decode(3, 330, DType::bf16).options);
  const double keys = 3 * 330, row_bytes = 2 * 3 * 64 * 128 * 2;
  expect_equal(count_work(c), {4 * 128 * 64 * keys, keys * 4 * 2 * 128 * 2 + row_bytes});
}

TEST(Work, QsaPrefillAndDecode) {
  for (Workload workload : {qsa_prefill(29, 415, DType::bf16, 2), qsa_decode(3, 415, DType::f8_e4m3)}) {
    workload.options.topk = 11;
    workload.options.positions_i32 = true;
    const io::Case c = io::generate_case(workload.options);
    expect_equal(count_work(c), count_qsa_by_token(c));
  }
}

TEST(Measure, SaysWhichPathRan) {
  Workload workload = qsa_decode(2, 330, DType::bf16);
  MeasureSettings settings;
  settings.num_threads = settings.warm_ups = settings.repeats = settings.most_repeats = 1;
  EXPECT_EQ(measure(workload, settings).path, Path::cpu);
  settings.path = Path::reference;
  EXPECT_EQ(measure(workload, settings).path, Path::reference);
}

TEST(SampleCheck, SeesAWrongElementAndAnUnwrittenOne) {
  Workload workload = qsa_prefill(5, 330, DType::bf16);
  io::CaseRun run(io::generate_case(workload.options), {});
  run.execute();
  const SampledErrors right = check_sampled_rows(run, 5, 2);
  EXPECT_EQ(right.rows, 5);
  EXPECT_EQ(describe(right, DType::bf16), "");

  auto* const out = static_cast<std::uint16_t*>(run.out().data);
  const std::int64_t last = run.out().numel() - 1;
  out[last] = 0x4000;  // 2.0
  EXPECT_NE(describe(check_sampled_rows(run, 5, 2), DType::bf16), "");

  run.execute();
  out[last] = 0xFFFF;
  EXPECT_EQ(describe(check_sampled_rows(run, 0, 2), DType::bf16), "out: 1 elements are not finite");

  run.execute();
  static_cast<float*>(run.lse().data)[0] += 0.01f;
  EXPECT_NE(describe(check_sampled_rows(run, 5, 2), DType::bf16), "");
}

TEST(StreamSum, SumsEveryWord) {
  std::vector<std::uint64_t> words(3 * 128, 1);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = std::uint64_t{1} << 40;
    EXPECT_EQ(stream_sum(words.data(), words.size()), words.size() - 1 + (std::uint64_t{1} << 40)) << i;
    words[i] = 1;
  }
}

std::string error_of(int (*body)()) {
  try {
    value_from_child("row", body);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChildProcess, ReturnsAValueAndItsPeakOfMemory) {
  constexpr std::size_t size = 64 << 20;
  const auto result = value_from_child("row", [] { return std::vector<char>(size, 1)[size / 2]; });
  EXPECT_EQ(result.value, 1);
  EXPECT_GE(result.peak_bytes, size);
}

TEST(ChildProcess, FailuresBecomeErrors) {
  EXPECT_EQ(error_of([]() -> int { throw std::runtime_error("no luck"); }), "row: no luck");
  EXPECT_EQ(error_of([] { return raise(SIGKILL); }), "row: killed by signal 9");
}

}  // namespace
}  // namespace kvsieve::bench
