// SPDX-License-Identifier: Apache-2.0
//
// What only the device sees of a bad input is harmless: index tensors full of garbage, poisoned memory, padded rows,
// empty requests, caches larger than 32 bits can address.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "io/generate.hpp"
#include "io/random.hpp"
#include "kvsieve/kvsieve.hpp"
#include "reference/reference.hpp"
#include "support/case_tools.hpp"
#include "support/hostile_cases.hpp"

namespace kvsieve::test {
namespace {

const char* guard_name(Guard guard) { return guard == Guard::after ? "guard after" : "guard before"; }

// ---- Garbage in index tensors --------------------------------------------------------------------------------------

std::vector<std::string> golden_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(KVSIEVE_TEST_DATA "/golden")) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The cases of tests/data/golden, between them of every operation, layout and dtype.
class HostileIndices : public testing::TestWithParam<std::string> {
 protected:
  io::Case load() const {
    const io::Case stored = io::load_case(KVSIEVE_TEST_DATA "/golden/" + GetParam() + ".safetensors");
    return guarded_copy(stored, Guard::after, [](io::Case& c) {
      make_finite(c.k());
      make_finite(c.v());
    });
  }

  static void expect_right(const io::Case& test_case, const std::string& what) {
    EXPECT_EQ(check_against_reference(test_case, cpu_options()), "") << what;
    EXPECT_EQ(reported_bad_indices(test_case, cpu_options()), reference_bad_indices(test_case)) << what;
  }
};

TEST_P(HostileIndices, EachTensorWithEachBadValue) {
  const io::Case original = load();
  io::Case names = original;
  const std::size_t count = index_inputs_of(names).size();
  io::Random random(1);
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::int64_t bad : bad_entries(original)) {
      for (const bool everywhere : {true, false}) {
        const Guard guard = random.chance(0.5) ? Guard::after : Guard::before;
        std::string what;
        const io::Case hostile =
            guarded_copy(original, guard, [&](io::Case& c) { what = spoil_input(c, i, bad, everywhere, random); });
        expect_right(hostile, what + ", " + guard_name(guard));
      }
    }
  }
}

TEST_P(HostileIndices, GarbageInAllTensorsAtOnce) {
  const io::Case original = load();
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    io::Random random(seed);
    const double rate = std::array{0.02, 0.2, 1.0}[seed % 3];
    const Guard guard = seed % 2 == 0 ? Guard::after : Guard::before;
    const io::Case hostile = guarded_copy(original, guard, [&](io::Case& c) { spoil_all_inputs(c, rate, random); });
    expect_right(hostile, "seed " + std::to_string(seed) + ", " + guard_name(guard));
  }
}

TEST_P(HostileIndices, ExtremePositionsIn64Bits) {
  const io::Case original = load();
  if (original.is_msa() || original.qsa.query_positions.dtype != DType::i64) return;
  for (const std::int64_t bad : {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                                 std::int64_t{1} << 32, std::int64_t{1} << 62}) {
    for (const std::int64_t capacity : {original.qsa_config.max_seq_len_kv, std::numeric_limits<std::int64_t>::max()}) {
      io::Case hostile = guarded_copy(original, Guard::after, [&](io::Case& c) {
        for (std::int64_t j = 0; j < c.qsa.query_positions.numel(); j += 2) set_integer(c.qsa.query_positions, j, bad);
      });
      hostile.qsa_config.max_seq_len_kv = capacity;
      expect_right(hostile, "position " + std::to_string(bad) + ", capacity " + std::to_string(capacity));
    }
  }
}

/// One list of ids for all KV heads by a stride of 0: each head selects by it, and its bad entries count once a head.
TEST_P(HostileIndices, KvHeadsThatReadTheSameIds) {
  const io::Case original = load();
  const std::int64_t bad_id = int_max;
  const auto share = [&](io::Case& c) {
    Tensor& ids = c.is_msa() ? c.msa.q2k_indices : c.qsa.indexer_block_ids;
    for (std::int64_t j = 0; j < ids.numel(); j += 3) set_integer(ids, j, bad_id);
    const int head = c.is_msa() ? 0 : 1;
    if (c.is_msa() || ids.rank == 3) ids.stride[static_cast<std::size_t>(head)] = 0;
  };
  const io::Case hostile = guarded_copy(original, Guard::after, share);
  EXPECT_GT(reference_bad_indices(hostile), 0);
  expect_right(hostile, "stride 0");
}

INSTANTIATE_TEST_SUITE_P(Golden, HostileIndices, testing::ValuesIn(golden_files()),
                         [](const auto& test) { return test.param; });

// ---- Poisoned memory -----------------------------------------------------------------------------------------------

/// Empty when `got` is as close to `want` as the tolerance for bf16 allows where that is finite, and not finite where
/// it is not.
std::string compare_poisoned(const Tensor& got, const Tensor& want) {
  double largest = 0.0;
  const auto value = [](const Tensor& t, std::int64_t offset) {
    return double{load_as_float(t.data, t.dtype, offset)};
  };
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    if (std::isfinite(value(want, i))) largest = std::max(largest, std::fabs(value(want, i)));
  }
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    const double g = value(got, i), w = value(want, i);
    if (std::isfinite(w) ? !(std::fabs(g - w) <= 0.01 * largest) : std::isfinite(g)) {
      return "element " + std::to_string(i) + ": got " + std::to_string(g) + ", want " + std::to_string(w);
    }
  }
  return "";
}

/// Which rows attend to a token is known to the reference, whose sums have no other terms.
void expect_no_leak(const io::Case& poisoned, const std::string& what) {
  io::Case with_expected = poisoned;
  io::add_reference_results(with_expected);
  for (const int num_threads : {1, 0, 7}) {  // 7 splits the keys
    io::CaseRun run(poisoned, cpu_options(num_threads));
    run.poison_outputs();
    run.execute();
    ASSERT_EQ(compare_poisoned(run.out(), with_expected.expected.out), "") << what << ", out, threads " << num_threads;
    ASSERT_EQ(compare_poisoned(run.lse(), with_expected.expected.lse), "") << what << ", lse, threads " << num_threads;
  }
}

struct Poison {
  const char* name;
  float value;
};
constexpr Poison poisons[] = {{"NaN", std::numeric_limits<float>::quiet_NaN()},
                              {"infinity", std::numeric_limits<float>::infinity()},
                              {"-infinity", -std::numeric_limits<float>::infinity()}};

/// FP8 E4M3 has no infinity; both of its NaN codes stand for the poisons there.
void store_poison(const Tensor& t, std::int64_t offset, float value) {
  if (t.dtype == DType::f8_e4m3) {
    static_cast<std::uint8_t*>(t.data)[offset] = std::signbit(value) ? 0xFF : 0x7F;
  } else {
    store_from_float(t.data, t.dtype, offset, value);
  }
}

/// Poisons element d of a random set of tokens, in all heads or one.
void poison_tokens(const Tensor& cache, double rate, float value, io::Random& random) {
  const bool paged = cache.rank == 4;
  const std::int64_t pages = paged ? cache.shape[0] : 1, tokens = paged ? cache.shape[2] : cache.shape[0];
  for (std::int64_t page = 0; page < pages; ++page) {
    for (std::int64_t head = 0; head < cache.shape[1]; ++head) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        if (!random.chance(rate)) continue;
        const std::int64_t row = paged ? page * cache.stride[0] + head * cache.stride[1] + token * cache.stride[2]
                                       : head * cache.stride[1] + token * cache.stride[0];
        store_poison(cache, row + random.below(cache.shape[cache.rank - 1]), value);
      }
    }
  }
}

std::vector<io::GenerateOptions> leak_shapes() {
  std::vector<io::GenerateOptions> shapes;
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    io::GenerateOptions o;
    o.kv_dtype = kv_dtype;
    o.batch_size = 2;
    o.query_lengths = {9};
    o.kv_lengths = {70, 41};
    o.num_qo_heads = 8;
    o.num_kv_heads = 2;
    o.head_dim = 64;
    o.topk = 3;
    o.replacement = 0.5;  // neighbouring rows share some blocks
    for (const std::int64_t page_size : {std::int64_t{0}, std::int64_t{16}}) {
      o.operation = io::Operation::msa_prefill;
      o.block_size = 8;
      o.page_size = page_size;
      shapes.push_back(o);
    }
    o.operation = io::Operation::msa_decode;
    o.query_lengths = {4};
    shapes.push_back(o);
    o.operation = io::Operation::qsa;
    o.query_lengths = {8};
    o.block_size = 4;
    o.page_size = 16;
    for (const bool packed : {true, false}) {
      o.packed = packed;
      o.group_size = 4;
      o.per_head_patterns = packed;
      shapes.push_back(o);
    }
    // Decode of few (row, head) pairs, which leave a vector part empty: rows of a tile that differ in what they see.
    o.operation = io::Operation::msa_decode;
    o.block_size = 8;
    for (const std::int64_t rows : {7, 4, 2}) {
      o.query_lengths = {rows};
      o.num_qo_heads = 2 * (rows == 7 ? 1 : rows == 4 ? 3 : 5);
      shapes.push_back(o);
    }
  }
  return shapes;
}

TEST(HostileMemory, PoisonedTokensReachOnlyTheRowsThatAttendToThem) {
  std::uint64_t seed = 0;
  for (io::GenerateOptions o : leak_shapes()) {
    for (const Poison& poison : poisons) {
      for (const bool in_values : {true, false}) {
        o.seed = ++seed;
        io::Random random(seed);
        const io::Case poisoned = guarded_copy(io::generate_case(o), Guard::after, [&](io::Case& c) {
          // Few tokens, so that most rows attend to none of them.
          poison_tokens(in_values ? c.v() : c.k(), 0.02, poison.value, random);
        });
        // An infinite key makes infinite logits of both signs, for which softmax has no value to compare.
        if (!in_values && !std::isnan(poison.value) && o.kv_dtype != DType::f8_e4m3) continue;
        expect_no_leak(poisoned, io::generate_command(o) + ", " + poison.name + (in_values ? " in v" : " in k"));
      }
    }
  }
}

TEST(HostileMemory, FirstKeyOfTheCausalFutureIsPoisoned) {
  // Row t of a request must not see key position(t) + 1, which its neighbour, one row later, attends to.
  for (io::GenerateOptions o : leak_shapes()) {
    o.seed = 5;
    o.topk = 20;  // every visible block
    io::Case base = io::generate_case(o);
    const io::Case poisoned = guarded_copy(base, Guard::after, [&](io::Case& c) {
      const Tensor& v = c.v();
      // The last token of request 0: only the last row attends to it.
      std::int64_t page = 0, token = o.kv_lengths[0] - 1;
      if (v.rank == 4) {
        const Tensor& table = c.is_msa() ? c.msa.page_table : c.qsa.block_table;
        page = get_integer(table, token / v.shape[2]);
        token %= v.shape[2];
      } else {
        token += get_integer(c.msa.cu_seqlens_k, 0);
      }
      for (std::int64_t head = 0; head < v.shape[1]; ++head) {
        const std::int64_t row = v.rank == 4 ? page * v.stride[0] + head * v.stride[1] + token * v.stride[2]
                                             : head * v.stride[1] + token * v.stride[0];
        for (std::int64_t d = 0; d < v.shape[v.rank - 1]; ++d) store_poison(v, row + d, NAN);
      }
    });
    expect_no_leak(poisoned, io::generate_command(o));
  }
}

// ---- Rows and requests without keys --------------------------------------------------------------------------------

/// Rows of the case whose lse is -infinity; their outputs must be zero.
std::int64_t count_empty_rows(const io::Case& test_case) {
  io::CaseRun run(test_case, cpu_options());
  run.poison_outputs();
  run.execute();
  const Tensor& lse = run.lse();
  const Tensor& out = run.out();
  const std::int64_t head_dim = out.shape[out.rank - 1];
  std::int64_t empty = 0;
  for (std::int64_t i = 0; i < lse.numel(); ++i) {
    if (load_as_float(lse.data, lse.dtype, i) != -std::numeric_limits<float>::infinity()) continue;
    ++empty;
    for (std::int64_t d = 0; d < head_dim; ++d) EXPECT_EQ(load_as_float(out.data, out.dtype, i * head_dim + d), 0.0f);
  }
  return empty / test_case.q().shape[test_case.q().rank - 2];
}

/// Checks the case, in guarded memory, and that it has so many rows without a key and no index entry that is
/// out of range unless the reference says so.
void expect_empty_rows(const CaseWithEmptyRows& made, Guard guard, const std::string& what) {
  const io::Case guarded = guarded_copy(made.test_case, guard);
  EXPECT_EQ(check_against_reference(guarded, cpu_options()), "") << what;
  EXPECT_EQ(count_empty_rows(guarded), made.empty_rows) << what;
  EXPECT_EQ(reported_bad_indices(guarded, cpu_options()), reference_bad_indices(guarded)) << what;
}

TEST(HostileRows, ZeroLengthRequestsAndPaddedDecodeRows) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    const CaseWithEmptyRows padded = padded_decode(head_dim);
    expect_empty_rows(padded, Guard::after, "head dim " + std::to_string(head_dim));
    EXPECT_EQ(reference_bad_indices(padded.test_case), 0);
  }
}

TEST(HostileRows, FirstBlocksWhollyMasked) {
  for (const std::int64_t position : {0, 1, 15, 16, 40}) {
    expect_empty_rows(first_blocks_masked(position), Guard::before, "position " + std::to_string(position));
  }
}

TEST(HostileRows, OnlyMaskedBlocksSelected) { expect_empty_rows(only_masked_blocks(), Guard::before, ""); }

TEST(HostileRows, NoRowsNoRequestsNoPagesNoIds) {
  const CallOptions options = cpu_options();
  float scale = 1.0f;
  MsaArguments a = msa_of_nothing({}, Tensor(&scale, DType::f32, {1}));
  a.lse_t = a.lse;
  EXPECT_NO_THROW(msa_sparse_decode_attention(a, options));
  const std::int32_t zero = 0;
  a.cu_seqlens_q = {&zero, DType::i32, {1}};
  EXPECT_NO_THROW(msa_sparse_attention(a, options));

  const QsaOfNothing qsa = qsa_of_nothing({}, a.cu_seqlens_q);
  EXPECT_NO_THROW(QsaPlan(qsa.config).run(qsa.arguments, options));
}

TEST(HostileRows, PageTablesWithoutColumns) {
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa}) {
    expect_empty_rows(page_table_without_columns(operation), Guard::after, std::string(io::operation_name(operation)));
  }
}

TEST(HostileRows, PointersOfTensorsThatAreNotGivenMeanNothing) {
  io::GenerateOptions o = small_msa();
  o.query_lengths = {3};
  o.kv_lengths = {40};
  io::Case c = io::generate_case(o);
  for (Tensor* t : {&c.msa.q_offset, &c.msa.cu_seqlens_k}) t->data = reinterpret_cast<void*>(64);
  EXPECT_EQ(check_against_reference(c, cpu_options()), "");
}

TEST(HostileRows, LogitsOfTenThousand) {
  for (io::GenerateOptions o : leak_shapes()) {
    o.seed = 3;
    o.query_amplitude = 64.0f;
    o.softmax_scale = 20.0f;
    const io::Case large = io::generate_case(o);
    io::Case expected = large;
    io::add_reference_results(expected);
    io::CaseRun run(large, cpu_options());
    run.poison_outputs();
    run.execute();
    const io::OutError error = io::compare_out(run.out(), expected.expected.out);
    EXPECT_EQ(io::describe(error, io::tolerance_for(run.out().dtype)), "") << io::generate_command(o);
    // Logits of 1e4 leave a float32 lse with an error of its own last bits.
    float largest = 0.0f;
    for (std::int64_t i = 0; i < run.lse().numel(); ++i) {
      const float got = load_as_float(run.lse().data, DType::f32, i);
      const float want = load_as_float(expected.expected.lse.data, DType::f32, i);
      EXPECT_NEAR(got, want, 1e-6f * std::fabs(want) + 2e-3f) << io::generate_command(o);
      largest = std::max(largest, std::fabs(want));
    }
    EXPECT_GT(largest, 1e4f) << io::generate_command(o);
  }
}

// ---- Caches beyond 32 bits -----------------------------------------------------------------------------------------

/// Address space without memory behind it until it is written.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

constexpr std::int64_t huge_heads = 2, huge_dim = 64, huge_page = 64;
constexpr std::int64_t huge_tokens = (std::int64_t{5} << 30) / (huge_heads * huge_dim * 2);  // 5 GiB of bf16
constexpr std::int64_t huge_pages = huge_tokens / huge_page;

/// Copies the pages of a generated case, which has 4 requests of up to 4 pages, to the far end of a cache of 5 GiB and
/// to either side of its byte 2^32 and element 2^31, and points the page table there.
void move_to_far_pages(Tensor& cache, const SparseMemory& memory, const std::vector<std::int64_t>& far_pages) {
  Tensor far(memory.data(), DType::bf16, {huge_pages, huge_heads, huge_page, huge_dim});
  for (std::int64_t page = 0; page < cache.shape[0]; ++page) {
    Tensor from = cache, to = far;
    from.data = static_cast<std::uint16_t*>(cache.data) + page * cache.stride[0];
    to.data = static_cast<std::uint16_t*>(far.data) + far_pages[static_cast<std::size_t>(page)] * far.stride[0];
    from.shape[0] = to.shape[0] = 1;
    io::copy_elements(from, to);
  }
  cache = far;
}

class HugeCache : public testing::TestWithParam<io::Operation> {};

TEST_P(HugeCache, PagesAtTheFarEnd) {
  io::GenerateOptions o;
  o.operation = GetParam();
  o.batch_size = 3;
  o.query_lengths = {4};
  o.kv_lengths = {256, 200, 64};
  o.num_qo_heads = 8;
  o.num_kv_heads = huge_heads;
  o.head_dim = huge_dim;
  o.block_size = 16;
  o.page_size = huge_page;
  o.topk = 8;
  o.group_size = 4;
  o.seed = 21;
  io::Case far = guarded_copy(io::generate_case(o), Guard::after);
  io::add_reference_results(far);  // before the move
  const std::int64_t num_pages = far.k().shape[0];
  const std::int64_t middle = (std::int64_t{1} << 32) / (huge_heads * huge_page * huge_dim * 2);
  std::vector<std::int64_t> far_pages;
  for (std::int64_t page = 0; page < num_pages; ++page) {
    far_pages.push_back(page % 2 == 0 ? huge_pages - 1 - page : middle - num_pages / 2 + page);
  }
  const SparseMemory k_memory(std::size_t{5} << 30), v_memory(std::size_t{5} << 30);
  ASSERT_NE(k_memory.data(), nullptr);
  ASSERT_NE(v_memory.data(), nullptr);
  const io::Expected expected = far.expected;
  io::Case moved = guarded_copy(far, Guard::after, [&](io::Case& c) {
    move_to_far_pages(c.is_msa() ? c.msa.k : c.qsa.k_cache, k_memory, far_pages);
    move_to_far_pages(c.is_msa() ? c.msa.v : c.qsa.v_cache, v_memory, far_pages);
    Tensor& table = c.is_msa() ? c.msa.page_table : c.qsa.block_table;
    for (std::int64_t i = 0; i < table.numel(); ++i) {
      const std::int64_t page = get_integer(table, i);
      if (page >= 0 && page < num_pages) set_integer(table, i, far_pages[static_cast<std::size_t>(page)]);
    }
  });
  io::CaseRun run(moved, cpu_options());
  run.poison_outputs();
  run.execute();
  EXPECT_EQ(io::check_run(run, expected).failure, "");
}

INSTANTIATE_TEST_SUITE_P(Operations, HugeCache,
                         testing::Values(io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa),
                         [](const auto& test) { return std::string(io::operation_name(test.param)); });

TEST(HugeFlatCache, TokensAtTheFarEnd) {
  io::GenerateOptions o = small_msa();
  o.num_kv_heads = huge_heads;
  o.head_dim = huge_dim;
  o.query_lengths = {5};
  o.kv_lengths = {90};
  o.page_size = 0;
  io::Case far = guarded_copy(io::generate_case(o), Guard::after);
  io::add_reference_results(far);
  const io::Expected expected = far.expected;
  const SparseMemory k_memory(std::size_t{5} << 30), v_memory(std::size_t{5} << 30);
  ASSERT_NE(k_memory.data(), nullptr);
  ASSERT_NE(v_memory.data(), nullptr);
  const std::int64_t first = huge_tokens - 90;
  io::Case moved = guarded_copy(far, Guard::after, [&](io::Case& c) {
    for (auto [cache, memory] : {std::pair{&c.msa.k, &k_memory}, std::pair{&c.msa.v, &v_memory}}) {
      Tensor all(memory->data(), DType::bf16, {huge_tokens, huge_heads, huge_dim});
      Tensor last = all;
      last.data = static_cast<std::uint16_t*>(all.data) + first * all.stride[0];
      last.shape[0] = 90;
      Tensor used = *cache;
      used.data = static_cast<std::uint16_t*>(cache->data) + get_integer(c.msa.cu_seqlens_k, 0) * cache->stride[0];
      used.shape[0] = 90;
      io::copy_elements(used, last);
      *cache = all;
    }
    set_integer(c.msa.cu_seqlens_k, 0, first);
    set_integer(c.msa.cu_seqlens_k, 1, huge_tokens);
  });
  io::CaseRun run(moved, cpu_options());
  run.poison_outputs();
  run.execute();
  EXPECT_EQ(io::check_run(run, expected).failure, "");
}

// ---- Refused before anything is written ----------------------------------------------------------------------------

TEST(HostileOutputs, OverlapWithAnInputIsRefusedAndNothingIsWritten) {
  const io::Case c = io::generate_case(small_msa());
  io::CaseRun run(c, cpu_options());
  run.poison_outputs();
  MsaArguments a = run.msa();
  a.q = a.out;
  EXPECT_THROW(msa_sparse_attention(a, cpu_options()), ArgumentError);
  for (std::int64_t i = 0; i < a.out.numel(); ++i) {
    ASSERT_EQ(static_cast<const std::uint16_t*>(a.out.data)[i], 0xFFFF);
  }
}

TEST(HostileOutputs, ErrorsOfIndicesComeAfterTheResult) {
  io::GenerateOptions o = small_msa();
  o.query_lengths = {5};
  o.kv_lengths = {60};
  const io::Case c = guarded_copy(io::generate_case(o), Guard::after,
                                  [](io::Case& hostile) { set_integer(hostile.msa.q2k_indices, 0, int_max); });
  io::Case expected = c;
  io::add_reference_results(expected);
  CallOptions options = cpu_options();
  options.check_indices = true;
  io::CaseRun run(c, options);
  run.poison_outputs();
  EXPECT_THROW(run.execute(), IndexError);
  EXPECT_EQ(io::check_run(run, expected.expected).failure, "");
}

}  // namespace
}  // namespace kvsieve::test
