// SPDX-License-Identifier: Apache-2.0
//
// One library, many threads; and the same bits every time.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "io/generate.hpp"
#include "kvsieve/kvsieve.hpp"
#include "support/case_tools.hpp"

namespace kvsieve::test {
namespace {

/// Calls of every operation, small enough to be made hundreds of times under ThreadSanitizer.
std::vector<io::GenerateOptions> shapes() {
  io::GenerateOptions o;
  o.batch_size = 3;
  o.num_qo_heads = 8;
  o.num_kv_heads = 2;
  o.head_dim = 64;
  o.block_size = 16;
  o.page_size = 32;
  o.topk = 6;
  o.kv_lengths = {150, 90, 33};
  std::vector<io::GenerateOptions> all;
  o.operation = io::Operation::msa_prefill;
  o.query_lengths = {20, 1, 7};
  o.lse_temperature_scale = 0.5f;
  all.push_back(o);
  o.kv_dtype = DType::f8_e4m3;
  o.page_size = 0;
  all.push_back(o);
  o.operation = io::Operation::msa_decode;
  o.page_size = 32;
  o.query_lengths = {1};
  all.push_back(o);
  o.operation = io::Operation::qsa;
  o.query_lengths = {8};
  o.group_size = 4;
  o.block_size = 4;
  o.topk = 40;
  o.gate = true;
  all.push_back(o);
  o.kv_dtype = DType::none;
  o.q_dtype = DType::f16;
  o.packed = false;
  o.per_head_patterns = true;
  o.gate = false;
  all.push_back(o);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].seed = i + 1;
  return all;
}

/// The bytes of all outputs of a run.
std::vector<std::byte> result_of(io::CaseRun& run) {
  run.poison_outputs();
  run.execute();
  std::vector<std::byte> bytes;
  for (const Tensor& output : {run.out(), run.lse(), run.lse_t()}) {
    if (!output.defined()) continue;
    const auto* const data = static_cast<const std::byte*>(output.data);
    bytes.insert(bytes.end(), data, data + static_cast<std::size_t>(output.numel()) * dtype_size(output.dtype));
  }
  return bytes;
}

std::vector<std::byte> result_of(const io::Case& test_case, int num_threads) {
  io::CaseRun run(test_case, cpu_options(num_threads));
  return result_of(run);
}

void in_parallel(int num_threads, const std::function<void(int)>& body) {
  std::atomic<int> waiting{num_threads};
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      waiting.fetch_sub(1);
      while (waiting.load() > 0) std::this_thread::yield();  // all start together
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Repeatability, FiftyRunsAreBitwiseEqual) {
  for (const io::GenerateOptions& o : shapes()) {
    const io::Case test_case = io::generate_case(o);
    for (const int num_threads : {0, 1, 3, 16}) {
      io::CaseRun run(test_case, cpu_options(num_threads));
      const std::vector<std::byte> first = result_of(run);
      for (int repeat = 1; repeat < 50; ++repeat) {
        ASSERT_EQ(result_of(run), first) << io::generate_command(o) << ", threads " << num_threads;
      }
    }
  }
}

TEST(Repeatability, MemoryOfTheWorkspaceMeansNothing) {
  for (const io::GenerateOptions& o : shapes()) {
    const io::Case test_case = io::generate_case(o);
    if (!test_case.is_msa()) continue;
    io::CaseRun run(test_case, cpu_options(16));
    const std::vector<std::byte> expected = result_of(run);
    for (const int fill : {0x00, 0x7F, 0xFF}) {
      std::vector<char> memory(run.workspace_size() + 7, static_cast<char>(fill));
      CallOptions options = cpu_options(16);
      options.workspace = {memory.data() + 7, run.workspace_size()};  // nor does its alignment
      run.poison_outputs();
      if (test_case.decode()) {
        msa_sparse_decode_attention(run.msa(), options);
      } else {
        msa_sparse_attention(run.msa(), options);
      }
      std::vector<std::byte> bytes(expected.size());
      std::size_t used = 0;
      for (const Tensor& output : {run.out(), run.lse(), run.lse_t()}) {
        if (!output.defined()) continue;
        const std::size_t size = static_cast<std::size_t>(output.numel()) * dtype_size(output.dtype);
        std::memcpy(bytes.data() + used, output.data, size);
        used += size;
      }
      EXPECT_EQ(bytes, expected) << io::generate_command(o) << ", fill " << fill;
    }
  }
}

TEST(NumThreads, EveryCountIsRight) {
  for (const io::GenerateOptions& o : shapes()) {
    const io::Case test_case = io::generate_case(o);
    for (const int num_threads : {0, 1, 2, 3, 4, 7, 16, 64, 1000}) {
      EXPECT_EQ(check_against_reference(test_case, cpu_options(num_threads)), "")
          << io::generate_command(o) << ", threads " << num_threads;
    }
  }
}

TEST(Concurrency, DifferentInputsAtOnce) {
  const std::vector<io::GenerateOptions> all = shapes();
  std::vector<io::Case> cases;
  std::vector<std::vector<std::byte>> expected;
  for (const io::GenerateOptions& o : all) {
    cases.push_back(io::generate_case(o));
    expected.push_back(result_of(cases.back(), 0));
  }
  std::atomic<int> wrong{0};
  in_parallel(8, [&](int thread) {
    const std::size_t i = static_cast<std::size_t>(thread) % cases.size();
    io::CaseRun run(cases[i], cpu_options());
    for (int repeat = 0; repeat < 20; ++repeat) {
      if (result_of(run) != expected[i]) wrong.fetch_add(1);
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Concurrency, OneInputSharedByAllThreads) {
  for (const io::GenerateOptions& o : shapes()) {
    const io::Case test_case = io::generate_case(o);
    const std::vector<std::byte> expected = result_of(test_case, 4);
    std::atomic<int> wrong{0};
    in_parallel(6, [&](int) {
      io::CaseRun run(test_case, cpu_options(4));
      for (int repeat = 0; repeat < 5; ++repeat) {
        if (result_of(run) != expected) wrong.fetch_add(1);
      }
    });
    EXPECT_EQ(wrong.load(), 0) << io::generate_command(o);
  }
}

TEST(Concurrency, MergesAtOnce) {
  constexpr std::int64_t states = 3, rows = 40, heads = 8, head_dim = 64;
  std::vector<float> outs(states * rows * heads * head_dim), lses(states * rows * heads);
  for (std::size_t i = 0; i < outs.size(); ++i) outs[i] = static_cast<float>(i % 101) - 50.0f;
  for (std::size_t i = 0; i < lses.size(); ++i) lses[i] = static_cast<float>(i % 13) * 0.5f;
  const auto merge = [&](std::vector<float>& out) {
    MergeArguments a;
    a.outs = {outs.data(), DType::f32, {states, rows, heads, head_dim}};
    a.lses = {lses.data(), DType::f32, {states, rows, heads}};
    a.out = {out.data(), DType::f32, {rows, heads, head_dim}};
    merge_states(a, cpu_options());
  };
  std::vector<float> expected(rows * heads * head_dim);
  merge(expected);
  std::atomic<int> wrong{0};
  in_parallel(6, [&](int) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<float> out(expected.size(), -1.0f);
      merge(out);
      if (out != expected) wrong.fetch_add(1);
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Concurrency, ErrorsInSomeThreadsLeaveTheOthersAlone) {
  const io::Case test_case = io::generate_case(shapes()[0]);
  const std::vector<std::byte> expected = result_of(test_case, 0);
  std::atomic<int> wrong{0};
  in_parallel(6, [&](int thread) {
    io::CaseRun run(test_case, cpu_options());
    MsaArguments bad = run.msa();
    bad.q.dtype = DType::i32;
    for (int repeat = 0; repeat < 10; ++repeat) {
      if (thread % 2 == 0) {
        if (result_of(run) != expected) wrong.fetch_add(1);
        continue;
      }
      try {
        msa_sparse_attention(bad, cpu_options());
        wrong.fetch_add(1);
      } catch (const ArgumentError&) {
      }
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace kvsieve::test
