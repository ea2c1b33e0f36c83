// SPDX-License-Identifier: Apache-2.0
//
// The CUDA paths at their limits: caches that 32 bits cannot address, a hundred thousand calls, the largest unions of
// selections, extreme logits and scales, scalars that change between replays of a graph.
//
//   KVSIEVE_LAUNCHES=N  calls of each repeated one (default 100000)
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attend/cuda/attend_cuda.hpp"
#include "core/numeric.hpp"
#include "cuda/check.hpp"
#include "cuda/device_memory.hpp"
#include "io/generate.hpp"
#include "kvsieve/kvsieve.hpp"
#include "support/case_tools.hpp"
#include "support/gpu_tools.hpp"

namespace kvsieve::test {
namespace {

constexpr std::array operations = {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa};

class GpuLimits : public GpuTest {};

// ---- Caches beyond 32 bits -----------------------------------------------------------------------------------------

/// 9 GiB of bf16 for K and as much for V: byte 2^32 and elements 2^31 and 2^32 are inside.
constexpr std::int64_t huge_bytes = std::int64_t{9} << 30;

std::size_t free_device_memory() {
  std::size_t free_bytes = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  return free_bytes;
}

class GpuHugeCache : public GpuTest, public testing::WithParamInterface<io::Operation> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::size_t needed = 2 * static_cast<std::size_t>(huge_bytes) + (std::size_t{1} << 30);
    if (free_device_memory() < needed) GTEST_SKIP() << "needs " << (needed >> 30) << " GiB of free device memory";
  }

  /// NaN, so that a wrong address shows.
  static std::shared_ptr<std::byte> huge_memory() {
    std::shared_ptr<std::byte> memory = cuda::allocate_device(static_cast<std::size_t>(huge_bytes), gpu.index);
    cuda::check(cudaMemset(memory.get(), 0xFF, static_cast<std::size_t>(huge_bytes)), "cudaMemset");
    return memory;
  }

  static void expect_right_on_every_path(const io::Case& moved, const io::Expected& expected) {
    for (const Path path : gpu_paths()) {
      io::CaseRun run(moved, gpu_options(path), true, gpu);
      run.execute();
      EXPECT_EQ(io::check_run(run, expected).failure, "") << path_name(path);
    }
  }
};

TEST_P(GpuHugeCache, PagesAtBothEndsAndAroundTheLimitsOf32Bits) {
  io::GenerateOptions o;  // of the model
  o.operation = GetParam();
  o.batch_size = 3;
  o.query_lengths = {GetParam() == io::Operation::msa_decode ? 2 : 40};
  o.kv_lengths = {2000, 700, 130};
  o.num_kv_heads = 2;
  o.num_qo_heads = 24;
  o.group_size = 8;
  o.seed = 21;
  const io::Case original = io::generate_case(o);
  io::Case with_expected = original;
  io::add_reference_results(with_expected);

  const Tensor& k = original.k();
  ASSERT_TRUE(k.is_contiguous());
  const std::int64_t page_bytes = k.stride[0] * 2;
  const std::int64_t huge_pages = huge_bytes / page_bytes;
  const std::int64_t num_pages = k.shape[0];
  const auto far_page = [&](std::int64_t page) {
    const std::int64_t i = page / 4;
    const std::int64_t last = huge_pages - 1;
    const std::int64_t around_4gib = (std::int64_t{1} << 32) / page_bytes - 2;
    const std::int64_t around_8gib = (std::int64_t{1} << 33) / page_bytes - 2;
    return std::array{i, last - i, around_4gib + i, around_8gib + i}[static_cast<std::size_t>(page % 4)];
  };
  const auto move = [&](const Tensor& cache, const std::shared_ptr<std::byte>& memory) {
    for (std::int64_t page = 0; page < num_pages; ++page) {
      cuda::copy(memory.get() + far_page(page) * page_bytes,
                 static_cast<const std::byte*>(cache.data) + page * page_bytes, static_cast<std::size_t>(page_bytes));
    }
    return Tensor(memory.get(), cache.dtype, {huge_pages, cache.shape[1], cache.shape[2], cache.shape[3]}, gpu);
  };
  const std::shared_ptr<std::byte> k_memory = huge_memory(), v_memory = huge_memory();
  const io::Case moved = guarded_copy(original, Guard::after, [&](io::Case& c) {
    Tensor& table = c.is_msa() ? c.msa.page_table : c.qsa.block_table;
    for (std::int64_t i = 0; i < table.numel(); ++i) {
      if (const std::int64_t page = get_integer(table, i); page >= 0) set_integer(table, i, far_page(page));
    }
    (c.is_msa() ? c.msa.k : c.qsa.k_cache) = move(original.k(), k_memory);
    (c.is_msa() ? c.msa.v : c.qsa.v_cache) = move(original.v(), v_memory);
  });
  expect_right_on_every_path(moved, with_expected.expected);
}

INSTANTIATE_TEST_SUITE_P(Operations, GpuHugeCache, testing::ValuesIn(operations),
                         [](const auto& test) { return std::string(io::operation_name(test.param)); });

class GpuHugeFlatCache : public GpuHugeCache {};

TEST_P(GpuHugeFlatCache, TokensAtTheFarEnd) {
  io::GenerateOptions o;
  o.operation = GetParam();
  o.query_lengths = {GetParam() == io::Operation::msa_decode ? 2 : 40};
  o.kv_lengths = {900};
  o.num_kv_heads = 2;
  o.num_qo_heads = 24;
  o.page_size = 0;
  o.seed = 22;
  const io::Case original = io::generate_case(o);
  io::Case with_expected = original;
  io::add_reference_results(with_expected);
  const Tensor& k = original.k();
  ASSERT_TRUE(k.is_contiguous());
  const std::int64_t token_bytes = k.stride[0] * 2;
  const std::int64_t tokens = huge_bytes / token_bytes;
  const std::int64_t first = tokens - k.shape[0];
  const auto move = [&](const Tensor& cache, const std::shared_ptr<std::byte>& memory) {
    cuda::copy(memory.get() + first * token_bytes, cache.data, static_cast<std::size_t>(cache.shape[0] * token_bytes));
    return Tensor(memory.get(), cache.dtype, {tokens, cache.shape[1], cache.shape[2]}, gpu);
  };
  const std::shared_ptr<std::byte> k_memory = huge_memory(), v_memory = huge_memory();
  const io::Case moved = guarded_copy(original, Guard::after, [&](io::Case& c) {
    set_integer(c.msa.cu_seqlens_k, 0, first);
    set_integer(c.msa.cu_seqlens_k, 1, tokens);
    c.msa.k = move(original.k(), k_memory);
    c.msa.v = move(original.v(), v_memory);
  });
  expect_right_on_every_path(moved, with_expected.expected);
}

INSTANTIATE_TEST_SUITE_P(Operations, GpuHugeFlatCache,
                         testing::Values(io::Operation::msa_prefill, io::Operation::msa_decode),
                         [](const auto& test) { return std::string(io::operation_name(test.param)); });

// ---- Sizes that no launch takes ------------------------------------------------------------------------------------

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "";
}

constexpr std::int64_t most_topk = (std::int64_t{1} << 24) - 2;         // with blocks of 4
constexpr std::int64_t most_rows = ((std::int64_t{1} << 25) - 1) / 24;  // with 24 heads

QsaConfig largest_qsa() {
  QsaConfig config;
  config.device = gpu;
  config.batch_size = most_rows / 2;
  config.seq_len_q = 2;
  config.num_qo_heads = 24;
  config.num_kv_heads = 2;
  config.block_topk = 1;
  config.max_seq_len_kv = 1000;
  return config;
}

/// Needs no GPU.
TEST(GpuSizes, AreRefusedPastTheLimit) {
  Shape shape;
  shape.num_qo_heads = 24;
  shape.num_kv_heads = 2;
  shape.head_dim = 128;
  shape.block_size = 4;
  shape.topk = most_topk;
  shape.total_q = most_rows;
  EXPECT_EQ(refusal_of([&] { cuda::check_sizes(shape); }), "");
  shape.total_q = most_rows + 1;
  EXPECT_EQ(refusal_of([&] { cuda::check_sizes(shape); }), "CUDA: 1398102 rows are more than one launch takes");
  shape.total_q = most_rows;
  shape.topk = most_topk + 1;
  EXPECT_EQ(refusal_of([&] { cuda::check_sizes(shape); }), "CUDA: a top-k of 16777215 is too large");
}

TEST_F(GpuLimits, APlanIsRefusedWhereItsCallsWouldBe) {
  QsaConfig config = largest_qsa();
  EXPECT_EQ(refusal_of([&] { QsaPlan{config}; }), "");
  config.batch_size = most_rows / 2 + 1;
  EXPECT_EQ(refusal_of([&] { QsaPlan{config}; }), "CUDA: 1398102 rows are more than one launch takes");
  config = largest_qsa();
  config.block_topk = most_topk + 1;
  EXPECT_EQ(refusal_of([&] { QsaPlan{config}; }), "CUDA: a top-k of 16777215 is too large");
  config.device = {};
  EXPECT_EQ(refusal_of([&] { QsaPlan{config}; }), "") << "the CPU takes it";
}

/// Its configuration holds many groups, which would be too many rows if they were full.
TEST_F(GpuLimits, AnEagerCallIsJudgedByTheRowsItHas) {
  constexpr std::int64_t rows = 9, heads = 24, head_dim = 64, group_size = 10;
  io::GenerateOptions o;
  o.operation = io::Operation::qsa;
  o.num_qo_heads = heads;
  o.num_kv_heads = 2;
  o.head_dim = head_dim;
  o.topk = 2;
  o.query_lengths = {rows};
  o.kv_lengths = {100};
  o.group_size = group_size;
  io::Case test_case = io::generate_case(o);
  io::add_reference_results(test_case);
  std::vector<std::int32_t> starts(most_rows / group_size + 2, rows);
  starts[0] = 0;
  test_case.qsa.qo_indptr = Tensor(starts.data(), DType::i32, {static_cast<std::int64_t>(starts.size())});

  GuardedDeviceMemory memory;
  QsaArguments a = memory.copy(test_case).qsa;
  a.out = Tensor(memory.allocate(rows * heads * head_dim * 2), DType::bf16, {rows, heads, head_dim}, gpu);
  const QsaConfig config = qsa_config(a, test_case.qsa_config.kv_block_size, group_size);
  EXPECT_EQ(refusal_of([&] { QsaPlan{config}; }), "CUDA: 1398110 rows are more than one launch takes");
  const std::size_t bytes = workspace_bytes(config);
  CallOptions options = gpu_options();
  options.workspace = {memory.allocate(bytes), bytes};
  qsa_attention(a, config.kv_block_size, group_size, options);
  cuda::synchronize(gpu.index);

  std::vector<std::uint16_t> out(rows * heads * head_dim);
  cuda::copy(out.data(), a.out.data, out.size() * 2);
  const io::OutError error =
      io::compare_out(Tensor(out.data(), DType::bf16, {rows, heads, head_dim}), test_case.expected.out);
  EXPECT_EQ(io::describe(error, io::tolerance_for(DType::bf16)), "");
  EXPECT_TRUE(memory.intact());
}

// ---- Many calls ----------------------------------------------------------------------------------------------------

TEST_F(GpuLimits, ManyCallsLeaveMemoryAndResultsAsTheyWere) {
  constexpr int calls_between_waits = 1000;
  const char* const text = std::getenv("KVSIEVE_LAUNCHES");
  const int batches = std::max((text == nullptr ? 100000 : std::atoi(text)) / calls_between_waits, 1);
  for (const io::Operation operation : {io::Operation::msa_decode, io::Operation::qsa}) {
    io::GenerateOptions o;  // of the model
    o.operation = operation;
    o.batch_size = 2;
    o.kv_lengths = {900, 500};
    o.packed = false;
    const io::Case test_case = io::generate_case(o);
    for (const Path path : gpu_paths()) {
      io::CaseRun run(test_case, gpu_options(path), true, gpu);
      run.execute();
      const std::vector<std::byte> first_out = bytes_of(run.out()), first_lse = bytes_of(run.lse());
      const auto run_batch = [&] {
        for (int i = 0; i < calls_between_waits; ++i) run.enqueue();
        cuda::synchronize(gpu.index);
      };
      run_batch();  // the driver's queues grow to their size
      const std::size_t free_before = free_device_memory();
      for (int i = 1; i < batches; ++i) run_batch();
      run.poison_outputs();
      run_batch();
      EXPECT_EQ(free_device_memory(), free_before) << io::operation_name(operation) << ", " << path_name(path);
      run.fetch_outputs();
      EXPECT_EQ(bytes_of(run.out()), first_out) << io::operation_name(operation) << ", " << path_name(path);
      EXPECT_EQ(bytes_of(run.lse()), first_lse) << io::operation_name(operation) << ", " << path_name(path);
    }
  }
}

// ---- Unions of selections ------------------------------------------------------------------------------------------

TEST_F(GpuLimits, NeighboursThatShareNothing) {
  // Each row draws its selection afresh from many more blocks than it takes: unions close to rows times top-k.
  for (const std::int64_t group : {1, 2, 16}) {
    for (const io::Operation operation : operations) {
      for (const auto& [block_size, topk] : {std::pair<std::int64_t, std::int64_t>{4, 700}, {128, 40}}) {
        if (operation == io::Operation::qsa && block_size != 4) continue;
        io::GenerateOptions o;
        o.operation = operation;
        o.num_kv_heads = 2;
        o.num_qo_heads = 2 * group;
        o.head_dim = 64;
        o.block_size = block_size;
        o.page_size = 128;
        o.topk = topk;
        o.query_lengths = {32};
        o.kv_lengths = {block_size == 4 ? 90000 : 120000};
        o.replacement = 1.0;
        o.group_size = std::min<std::int64_t>(32, 128 / group);
        o.per_head_patterns = group == 2;
        o.seed = static_cast<std::uint64_t>(group * 1000 + topk);
        EXPECT_EQ(check_on_gpu(io::generate_case(o)), "") << io::generate_command(o);
      }
    }
  }
}

TEST_F(GpuLimits, NeighboursThatShareNothingAtTheModelsShapes) {
  for (const io::Operation operation : operations) {
    io::GenerateOptions o;
    o.operation = operation;
    o.query_lengths = {operation == io::Operation::msa_decode ? 4 : 48};
    o.kv_lengths = {40000};
    o.replacement = 1.0;
    o.group_size = 8;
    o.seed = 41;
    EXPECT_EQ(check_on_gpu(io::generate_case(o)), "") << io::generate_command(o);
  }
}

// ---- Numbers -------------------------------------------------------------------------------------------------------

/// Small calls of every operation and head dim, bf16 and FP8 caches.
std::vector<io::GenerateOptions> number_shapes() {
  std::vector<io::GenerateOptions> shapes;
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const io::Operation operation : operations) {
        io::GenerateOptions o;
        o.operation = operation;
        o.kv_dtype = kv_dtype;
        o.head_dim = head_dim;
        o.num_kv_heads = 2;
        o.num_qo_heads = 16;
        o.batch_size = 2;
        o.query_lengths = {operation == io::Operation::msa_decode ? 4 : 19};
        o.kv_lengths = {700, 130};
        o.topk = 3;
        if (operation == io::Operation::qsa) {
          o.block_size = 4;
          o.page_size = 16;
          o.topk = 40;
          o.group_size = 4;
        }
        o.seed = 3 + shapes.size();
        shapes.push_back(o);
      }
    }
  }
  return shapes;
}

TEST_F(GpuLimits, LogitsOfTenThousand) {
  for (io::GenerateOptions o : number_shapes()) {
    o.query_amplitude = 64.0f;
    o.softmax_scale = 80.0f / std::sqrt(static_cast<float>(o.head_dim));
    const io::Case large = io::generate_case(o);
    io::Case expected = large;
    io::add_reference_results(expected);
    for (const Path path : gpu_paths()) {
      io::CaseRun run(large, gpu_options(path), true, gpu);
      run.execute();
      const io::OutError error = io::compare_out(run.out(), expected.expected.out);
      EXPECT_EQ(io::describe(error, io::tolerance_for(run.out().dtype)), "")
          << path_name(path) << ": " << io::generate_command(o);
      // Logits of 1e4 leave a float32 lse with an error of its own last bits.
      float largest = 0.0f;
      for (std::int64_t i = 0; i < run.lse().numel(); ++i) {
        const float got = load_as_float(run.lse().data, DType::f32, i);
        const float want = load_as_float(expected.expected.lse.data, DType::f32, i);
        ASSERT_NEAR(got, want, 1e-6f * std::fabs(want) + 2e-3f) << path_name(path) << ": " << io::generate_command(o);
        largest = std::max(largest, std::fabs(want));
      }
      EXPECT_GT(largest, 1e4f) << io::generate_command(o);
    }
  }
}

TEST_F(GpuLimits, ScalesOfZeroAndBelow) {
  for (io::GenerateOptions o : number_shapes()) {
    for (const float scale : {0.0f, -0.0f, -0.125f, -2.0f}) {
      o.softmax_scale = scale;
      for (const float v_scale : {1.0f, -1.5f, 0.0f}) {
        o.v_scale = v_scale;
        o.scale_tensors = v_scale < 0.0f;
        EXPECT_EQ(check_on_gpu(io::generate_case(o)), "") << io::generate_command(o);
      }
    }
    if (o.operation == io::Operation::qsa) continue;
    for (const float k_scale : {0.0f, -1.0f}) {
      o.softmax_scale.reset();
      o.k_scale = k_scale;
      EXPECT_EQ(check_on_gpu(io::generate_case(o)), "") << io::generate_command(o);
    }
  }
}

TEST_F(GpuLimits, OutputGate) {
  for (const bool packed : {true, false}) {
    for (const DType q_dtype : {DType::bf16, DType::f16, DType::f8_e4m3}) {
      for (const std::int64_t head_dim : {64, 128, 256}) {
        io::GenerateOptions o;
        o.operation = io::Operation::qsa;
        o.q_dtype = q_dtype;
        o.head_dim = head_dim;
        o.num_kv_heads = 2;
        o.num_qo_heads = 24;
        o.batch_size = 3;
        o.query_lengths = {packed ? 21 : 20};
        o.kv_lengths = {700, 30, 64};
        o.topk = 50;
        o.packed = packed;
        o.group_size = 4;
        o.padding_rows = packed ? 5 : 0;  // rows without keys have a gate too
        o.gate = true;
        o.row_gap = 16;
        o.seed = 51;
        EXPECT_EQ(check_on_gpu(io::generate_case(o)), "") << io::generate_command(o);
      }
    }
  }
}

// ---- Graphs --------------------------------------------------------------------------------------------------------

/// A call captured in a graph on a stream of its own.
class CapturedCall {
 public:
  CapturedCall(const io::Case& test_case, Path path) {
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    CallOptions options = gpu_options(path);
    options.stream = stream_;
    run_ = std::make_unique<io::CaseRun>(test_case, options, true, gpu);
    run_->execute();  // loads the kernels before the capture
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    run_->enqueue();
    cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check(status, "cudaGraphInstantiate");
  }
  ~CapturedCall() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    cudaStreamDestroy(stream_);
  }
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  /// Replays the call into poisoned outputs; what is wrong with them.
  std::string replay(const io::Expected& expected) {
    run_->poison_outputs();
    cuda::synchronize(gpu.index);  // the stream does not wait for copies
    cuda::check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
    run_->fetch_outputs();
    return io::check_run(*run_, expected).failure;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::unique_ptr<io::CaseRun> run_;
};

void set_scales(io::Case& c, const Scalar& logits, const Scalar& values) {
  if (c.is_msa()) {
    c.msa.k_global_scale = logits;
    c.msa.v_global_scale = values;
  } else {
    c.qsa.sm_scale = logits;
    c.qsa.v_scale = values;
  }
}

TEST_F(GpuLimits, ScalarsOnTheDeviceChangeBetweenReplays) {
  for (const io::GenerateOptions& o : number_shapes()) {
    const io::Case test_case = io::generate_case(o);
    for (const Path path : gpu_paths()) {
      GuardedDeviceMemory memory;
      const float one = 1.0f;
      const Tensor logits = memory.copy(Tensor(&one, DType::f32, {1}));
      const Tensor values = memory.copy(Tensor(&one, DType::f32, {1}));
      io::Case on_device = test_case;
      set_scales(on_device, logits, values);
      CapturedCall call(on_device, path);
      for (const auto& [k_scale, v_scale] : {std::pair{0.5f, 2.0f}, {0.125f, -0.25f}, {-0.25f, 1.0f}, {0.0f, 3.0f}}) {
        cuda::copy(logits.data, &k_scale, 4);
        cuda::copy(values.data, &v_scale, 4);
        io::Case expected = test_case;
        set_scales(expected, k_scale, v_scale);
        io::add_reference_results(expected);
        EXPECT_EQ(call.replay(expected.expected), "")
            << path_name(path) << ": " << io::generate_command(o) << ", scales " << k_scale << ", " << v_scale;
      }
      EXPECT_TRUE(memory.intact());
    }
  }
}

}  // namespace
}  // namespace kvsieve::test
