// SPDX-License-Identifier: Apache-2.0
//
// The CUDA paths against the float64 reference. Every test skips, and says why, where there is no GPU.
//
//   KVSIEVE_RANDOM_CONFIGS=N  random calls in all (default 2400)
//   KVSIEVE_GOLDEN_DIR        where the golden cases are, when not where they were at the build
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cuda/device_memory.hpp"
#include "io/generate.hpp"
#include "kvsieve/kvsieve.hpp"
#include "support/case_tools.hpp"
#include "support/gpu_tools.hpp"
#include "support/random_options.hpp"

namespace kvsieve::test {
namespace {

class Gpu : public GpuTest {};

TEST_F(Gpu, GoldenCasesMatchTheOracle) {
  const std::vector<std::filesystem::path> files = golden_files();
  for (const std::filesystem::path& file : files) {
    const io::Case test_case = io::load_case(file.string());
    for (const Path path : gpu_paths()) {
      io::CaseRun run(test_case, gpu_options(path), true, gpu);
      run.execute();
      const io::RunCheck check = io::check_run(run, test_case.expected);
      EXPECT_EQ(check.failure, "") << file << " " << path_name(path);
      EXPECT_TRUE(check.out && check.lse);
    }
  }
  EXPECT_GE(files.size(), 15u);
}

class GpuRandom : public GpuTest, public testing::WithParamInterface<std::tuple<Path, int>> {};

TEST_P(GpuRandom, AgreesWithTheReference) {
  constexpr int num_shards = 8;
  const auto [path, shard] = GetParam();
  if (path == Path::cuda_sm90 && !is_hopper()) GTEST_SKIP() << "no Hopper GPU";
  const char* const text = std::getenv("KVSIEVE_RANDOM_CONFIGS");
  const int count = (text == nullptr ? 2400 : std::atoi(text)) / num_shards;
  int failures = 0;
  int refused = 0;
  for (int i = 0; i < count && failures < 5; ++i) {
    const int number = 20000 + i * num_shards + shard;
    const auto seed = static_cast<std::uint64_t>(number);
    const RandomCall call = random_call(seed);
    const io::Case test_case = io::generate_case(call.options);
    std::string failure;
    try {
      failure = check_against_reference(test_case, gpu_options(path), call.with_lse, gpu);
      if (failure.empty() &&
          reported_bad_indices(test_case, gpu_options(path), gpu) != reference_bad_indices(test_case)) {
        failure = "check_indices counts other entries than the reference";
      }
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (path == Path::cuda_sm90 && is_refusal(failure)) {
      ++refused;
      continue;
    }
    if (failure.empty()) continue;
    ++failures;
    ADD_FAILURE() << failure << "\n  seed " << seed << "\n  " << io::generate_command(call.options)
                  << " --expected --output=case.safetensors\n  kvsieve run case.safetensors --device=cuda --path="
                  << path_name(path);
  }
  std::cout << path_name(path) << ": " << count - refused << " calls computed, " << refused << " refused\n";
  EXPECT_LE(refused, count / 2);
}

INSTANTIATE_TEST_SUITE_P(Shard, GpuRandom,
                         testing::Combine(testing::Values(Path::cuda_portable, Path::cuda_sm90, Path::automatic),
                                          testing::Range(0, 8)),
                         [](const auto& test) {
                           return std::string(path_name(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_F(Gpu, RoutesOfEveryTableSize) {
  // Hash tables of the routes from a few hundred bytes to more than shared memory holds.
  for (const std::int64_t topk : {1, 40, 150, 212, 213, 300, 400, 700, 3000, 7000}) {
    io::GenerateOptions o;
    o.operation = io::Operation::qsa;
    o.num_qo_heads = 15;
    o.num_kv_heads = 3;
    o.head_dim = 64;
    o.block_size = 4;
    o.page_size = 16;
    o.topk = topk;
    o.group_size = 8;
    o.query_lengths = {9};
    o.kv_lengths = {1500};
    o.seed = static_cast<std::uint64_t>(topk);
    EXPECT_EQ(check_against_reference(io::generate_case(o), gpu_options(), true, gpu), "") << "topk " << topk;
  }
}

TEST_F(Gpu, ACallSaysWhichPathItTakes) {
  const Path best = is_hopper() ? Path::cuda_sm90 : Path::cuda_portable;
  const auto path_of = [](const io::GenerateOptions& o, Path asked) {
    return io::CaseRun(io::generate_case(o), gpu_options(asked), true, gpu).path();
  };
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa}) {
    io::GenerateOptions o;
    o.operation = operation;
    EXPECT_EQ(path_of(o, Path::automatic), best) << io::operation_name(operation);
    for (const Path path : {Path::cuda_portable, best}) EXPECT_EQ(path_of(o, path), path);
    EXPECT_THROW(path_of(o, Path::cpu), UnsupportedError);

    // Calls that the Hopper path does not take: rows that are not aligned, and lse_t.
    o.row_gap = 1;
    EXPECT_EQ(path_of(o, Path::automatic), Path::cuda_portable) << io::operation_name(operation);
    EXPECT_THROW(path_of(o, Path::cuda_sm90), UnsupportedError);
    o.row_gap = 0;
    if (operation == io::Operation::qsa) continue;
    o.lse_temperature_scale = 0.5f;
    EXPECT_EQ(path_of(o, Path::automatic), Path::cuda_portable) << io::operation_name(operation);
  }
}

/// MSA and QSA, prefill and decode, large enough for several tiles and splits.
std::vector<io::Case> typical_cases(std::uint64_t seed) {
  std::vector<io::Case> cases;
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa}) {
    io::GenerateOptions o;
    o.operation = operation;
    o.seed = seed;
    o.num_qo_heads = 32;
    o.num_kv_heads = 2;
    o.head_dim = 128;
    o.topk = 12;
    o.query_lengths = operation == io::Operation::msa_decode ? std::vector<std::int64_t>{1, 1, 1}
                                                             : std::vector<std::int64_t>{40, 3, 17};
    o.batch_size = 3;
    o.kv_lengths = {3000, 500, 1700};
    if (operation == io::Operation::qsa) {
      o.block_size = 4;
      o.page_size = 64;
      o.topk = 100;
      o.packed = true;
    }
    cases.push_back(io::generate_case(o));
  }
  return cases;
}

TEST_F(Gpu, FiftyRepeatsAreBitwiseEqual) {
  for (const io::Case& test_case : typical_cases(1)) {
    io::CaseRun run(test_case, gpu_options(), true, gpu);
    run.execute();
    const std::vector<std::byte> first = bytes_of(run.out());
    for (int i = 0; i < 50; ++i) {
      run.poison_outputs();
      run.execute();
      ASSERT_EQ(bytes_of(run.out()), first) << io::operation_name(test_case.operation) << ", repeat " << i;
    }
  }
}

TEST_F(Gpu, ThreadsOnStreamsOfTheirOwn) {
  const std::vector<io::Case> cases = typical_cases(2);
  std::vector<std::string> failures(4);
  std::vector<std::thread> threads;
  threads.reserve(failures.size());
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      cudaStream_t stream = nullptr;
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      CallOptions options = gpu_options();
      options.stream = stream;
      for (int i = 0; i < 5; ++i) {
        const std::string failure =
            check_against_reference(cases[static_cast<std::size_t>((t + i) % 3)], options, true, gpu);
        if (!failure.empty()) failures[static_cast<std::size_t>(t)] = failure;
      }
      cudaStreamDestroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST_F(Gpu, AGraphSeesNewContentsAtReplay) {
  // Decode of two requests, captured with one set of lengths and ids and replayed with another, also with a padded
  // request of length 0 with four rows.
  io::GenerateOptions o;
  o.operation = io::Operation::msa_decode;
  o.num_qo_heads = 16;
  o.num_kv_heads = 1;
  o.head_dim = 128;
  o.topk = 6;
  o.batch_size = 2;
  o.query_lengths = {4, 4};
  o.kv_lengths = {2000, 900};
  io::Case first = io::generate_case(o);
  io::Case second = io::generate_case(o);
  o.seed = 99;
  const io::Case other = io::generate_case(o);
  const std::int64_t num_ids = second.msa.q2k_indices.numel();
  for (std::int64_t i = 0; i < num_ids; ++i) {
    set_integer(second.msa.q2k_indices, i, get_integer(other.msa.q2k_indices, i));
  }
  set_integer(second.msa.seqused_k, 0, 0);
  set_integer(second.msa.seqused_k, 1, 777);

  std::vector<std::shared_ptr<std::byte>> memory;
  const auto move = [&](const Tensor& tensor) {
    std::shared_ptr<std::byte> owner;
    const Tensor result = cuda::to_device(tensor, 0, owner);
    memory.push_back(owner);
    return result;
  };
  io::add_reference_results(second);
  io::CaseRun host(second, cpu_options());
  MsaArguments a = first.msa;
  a.out = host.out();
  a.lse = host.lse();
  for (Tensor* const t : {&a.q, &a.k, &a.v, &a.q2k_indices, &a.page_table, &a.seqused_k, &a.out, &a.lse}) *t = move(*t);
  const std::size_t bytes = workspace_bytes(msa_config(a));
  memory.push_back(cuda::allocate_device(bytes, 0));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  CallOptions options = gpu_options();
  options.stream = stream;
  options.workspace = {memory.back().get(), bytes};
  msa_sparse_decode_attention(a, options);  // loads the kernels before the capture
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  msa_sparse_decode_attention(a, options);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  cuda::copy(a.q2k_indices.data, second.msa.q2k_indices.data, static_cast<std::size_t>(num_ids) * 4);
  cuda::copy(a.seqused_k.data, second.msa.seqused_k.data, 8);
  for (const Tensor* const t : {&a.out, &a.lse}) {
    ASSERT_EQ(cudaMemset(t->data, 0xFF, static_cast<std::size_t>(t->numel()) * dtype_size(t->dtype)), cudaSuccess);
  }
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cuda::copy(host.out().data, a.out.data, static_cast<std::size_t>(a.out.numel()) * dtype_size(a.out.dtype));
  cuda::copy(host.lse().data, a.lse.data, static_cast<std::size_t>(a.lse.numel()) * 4);
  EXPECT_EQ(io::check_run(host, second.expected).failure, "");

  // Host time of a call: validation and launches.
  constexpr int calls = 2000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) msa_sparse_decode_attention(a, options);
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::cout << "host time of a call: " << elapsed.count() / calls << " us\n";
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(Gpu, MergeStatesMatchesTheReference) {
  constexpr std::int64_t states = 3, rows = 5, heads = 4, dim = 96;
  std::vector<float> outs(states * rows * heads * dim), lses(states * rows * heads);
  for (std::size_t i = 0; i < outs.size(); ++i) outs[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < lses.size(); ++i) lses[i] = 5.0f * std::cos(static_cast<float>(i));
  lses[2] = -INFINITY;
  for (std::int64_t s = 0; s < states; ++s) lses[static_cast<std::size_t>(s * rows * heads + 7)] = -INFINITY;
  std::vector<float> out(rows * heads * dim), lse(rows * heads), want_out(out.size()), want_lse(lse.size());
  MergeArguments host;
  host.outs = Tensor(outs.data(), DType::f32, {states, rows, heads, dim});
  host.lses = Tensor(lses.data(), DType::f32, {states, rows, heads});
  host.out = Tensor(want_out.data(), DType::f32, {rows, heads, dim});
  host.lse = Tensor(want_lse.data(), DType::f32, {rows, heads});
  CallOptions reference;
  reference.path = Path::reference;
  merge_states(host, reference);

  std::vector<std::shared_ptr<std::byte>> memory(4);
  MergeArguments device;
  device.outs = cuda::to_device(host.outs, 0, memory[0]);
  device.lses = cuda::to_device(host.lses, 0, memory[1]);
  device.out = cuda::to_device(host.out, 0, memory[2]);
  device.lse = cuda::to_device(host.lse, 0, memory[3]);
  ASSERT_EQ(cudaMemset(device.out.data, 0xFF, out.size() * 4), cudaSuccess);
  merge_states(device);
  cuda::synchronize(0);
  cuda::copy(out.data(), device.out.data, out.size() * 4);
  cuda::copy(lse.data(), device.lse.data, lse.size() * 4);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want_out[i], 1e-5f) << i;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(want_lse[i])) {
      ASSERT_EQ(lse[i], want_lse[i]);
    } else {
      ASSERT_NEAR(lse[i], want_lse[i], 1e-5f);
    }
  }
}

}  // namespace
}  // namespace kvsieve::test
