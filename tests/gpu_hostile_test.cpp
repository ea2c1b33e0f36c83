// SPDX-License-Identifier: Apache-2.0
//
// What only the device sees of a bad input is harmless on every CUDA path: garbage in index tensors, NaN in all memory
// that no row attends to, rows and requests without keys. Every tensor is alone in an allocation of its size, between
// guards.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "cuda/device_memory.hpp"
#include "io/generate.hpp"
#include "io/random.hpp"
#include "kvsieve/kvsieve.hpp"
#include "support/case_tools.hpp"
#include "support/gpu_tools.hpp"
#include "support/hostile_cases.hpp"
#include "support/selection_rules.hpp"

namespace kvsieve::test {
namespace {

/// A copy of the case with other indices, where exactly the tokens that some row attends to are numbers.
template <class Change>
io::Case changed_indices(const io::Case& test_case, Change&& change) {
  return guarded_copy(test_case, Guard::after, [&](io::Case& c) {
    change(c);
    // Garbage can lead rows, rightly, to tokens that no sequence had.
    make_finite(c.k());
    make_finite(c.v());
    poison_unattended(c);
  });
}

class GpuHostile : public GpuTest {
 protected:
  static std::vector<io::Case> golden_cases() {
    std::vector<io::Case> cases;
    for (const std::filesystem::path& file : golden_files()) cases.push_back(io::load_case(file.string()));
    return cases;
  }
};

// ---- Garbage in index tensors --------------------------------------------------------------------------------------

TEST_F(GpuHostile, EachTensorWithEachBadValue) {
  io::Random random(1);
  for (const io::Case& original : golden_cases()) {
    io::Case names = original;
    const std::size_t count = index_inputs_of(names).size();
    for (std::size_t i = 0; i < count; ++i) {
      for (const std::int64_t bad : bad_entries(original)) {
        for (const bool everywhere : {true, false}) {
          std::string what;
          const io::Case hostile =
              changed_indices(original, [&](io::Case& c) { what = spoil_input(c, i, bad, everywhere, random); });
          EXPECT_EQ(check_on_gpu(hostile), "") << original.name << ", " << what;
          if (HasFailure()) return;  // a fault of the device fails every later call
        }
      }
    }
  }
}

TEST_F(GpuHostile, GarbageInAllTensorsAtOnce) {
  for (const io::Case& original : golden_cases()) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      io::Random random(seed);
      const double rate = std::array{0.02, 0.2, 1.0}[seed % 3];
      const io::Case hostile = changed_indices(original, [&](io::Case& c) { spoil_all_inputs(c, rate, random); });
      EXPECT_EQ(check_on_gpu(hostile), "") << original.name << ", seed " << seed;
      if (HasFailure()) return;
    }
  }
}

TEST_F(GpuHostile, ExtremePositionsIn64Bits) {
  // A position past the tables but within max_seq_len_kv is legal: its row attends to the selected blocks that have
  // pages, and to nothing by way of its tail.
  constexpr std::int64_t two32 = std::int64_t{1} << 32;
  int cases = 0;
  for (const io::Case& original : golden_cases()) {
    if (original.is_msa() || original.qsa.query_positions.dtype != DType::i64) continue;
    ++cases;
    for (const std::int64_t bad :
         {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), two32 - 1, two32,
          two32 + 5, (std::int64_t{1} << 34) + 1, (std::int64_t{1} << 36) + 7, std::int64_t{1} << 62}) {
      for (const std::int64_t capacity :
           {original.qsa_config.max_seq_len_kv, std::numeric_limits<std::int64_t>::max()}) {
        io::Case with_capacity = original;
        with_capacity.qsa_config.max_seq_len_kv = capacity;
        const io::Case hostile = changed_indices(with_capacity, [&](io::Case& c) {
          for (std::int64_t j = 0; j < c.qsa.query_positions.numel(); j += 2) {
            set_integer(c.qsa.query_positions, j, bad);
          }
        });
        EXPECT_EQ(check_on_gpu(hostile), "") << original.name << ", position " << bad << ", capacity " << capacity;
      }
    }
  }
  EXPECT_GE(cases, 1);
}

/// Requests of 30, 7, 0 and 25 rows.
io::GenerateOptions four_requests() {
  io::GenerateOptions o;
  o.batch_size = 4;
  o.query_lengths = {30, 7, 0, 25};
  o.kv_lengths = {700, 300, 128, 1000};
  o.num_qo_heads = 8;
  o.num_kv_heads = 2;
  o.head_dim = 128;
  o.topk = 4;
  o.seed = 31;
  return o;
}

TEST_F(GpuHostile, BoundariesThatDecrease) {
  const std::vector<std::vector<std::int64_t>> row_bounds = {
      {62, 40, 20, 10, 0},  {0, 40, 20, 50, 62},           {0, 62, 0, 62, 0},
      {0, 0, 0, 0, 0},      {-5, 70, 30, 30, 62},          {3, 9, 9, 9, 20},
      {62, 62, 62, 62, 62}, {0, int_max, int_min, 62, 62}, {int_min, int_max, int_min, int_max, 0}};
  for (const std::int64_t page_size : {0, 128}) {
    io::GenerateOptions o = four_requests();
    o.page_size = page_size;
    const io::Case original = io::generate_case(o);
    for (std::size_t i = 0; i < row_bounds.size(); ++i) {
      const io::Case hostile = changed_indices(original, [&](io::Case& c) {
        for (std::int64_t b = 0; b <= 4; ++b) {
          set_integer(c.msa.cu_seqlens_q, b, row_bounds[i][static_cast<std::size_t>(b)]);
        }
      });
      EXPECT_EQ(check_on_gpu(hostile), "") << "cu_seqlens_q " << i << ", page size " << page_size;
    }
    if (page_size != 0) continue;
    const std::int64_t tokens = original.k().shape[0];
    const std::vector<std::vector<std::int64_t>> token_bounds = {{tokens, 900, 600, 300, 0},
                                                                 {0, tokens, 0, tokens, 5},
                                                                 {-1, 300, 900, 1000, tokens + 1},
                                                                 {500, 500, 400, tokens, tokens},
                                                                 {int_min, int_max, int_min, 100, int_max}};
    for (std::size_t i = 0; i < token_bounds.size(); ++i) {
      const io::Case hostile = changed_indices(original, [&](io::Case& c) {
        for (std::int64_t b = 0; b <= 4; ++b) {
          set_integer(c.msa.cu_seqlens_k, b, token_bounds[i][static_cast<std::size_t>(b)]);
        }
      });
      EXPECT_EQ(check_on_gpu(hostile), "") << "cu_seqlens_k " << i;
    }
  }
}

TEST_F(GpuHostile, LengthsThatAreNegativeOrTooLong) {
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::msa_decode}) {
    io::GenerateOptions o = four_requests();
    o.operation = operation;
    if (operation == io::Operation::msa_decode) o.query_lengths = {3};
    const io::Case original = io::generate_case(o);
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{-1, -128, int_min, int_max}, std::vector<std::int64_t>{int_max, 100000, 1025, -7},
          std::vector<std::int64_t>{0, 0, 0, 0}}) {
      const io::Case hostile = changed_indices(original, [&](io::Case& c) {
        for (std::int64_t b = 0; b < 4; ++b) set_integer(c.msa.seqused_k, b, lengths[static_cast<std::size_t>(b)]);
      });
      EXPECT_EQ(check_on_gpu(hostile), "") << io::operation_name(operation) << ", first length " << lengths[0];
    }
  }
}

// ---- Poisoned memory -----------------------------------------------------------------------------------------------

/// Shapes of both families, of every head dim, of one and of several rows for each tile of (row, head) pairs.
std::vector<io::GenerateOptions> poison_shapes() {
  std::vector<io::GenerateOptions> shapes;
  for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t group : {1, 4, 16}) {
        io::GenerateOptions o;
        o.kv_dtype = kv_dtype;
        o.head_dim = head_dim;
        o.num_kv_heads = 2;
        o.num_qo_heads = 2 * group;
        o.batch_size = 3;
        o.query_lengths = {37, 1, 20};
        o.kv_lengths = {1000, 129, 333};
        o.topk = 3;
        o.spare_pages = 3;
        o.replacement = 0.4;
        o.seed = shapes.size() + 1;
        for (const std::int64_t page_size : {0, 128}) {
          o.page_size = page_size;
          shapes.push_back(o);
          // Rows in the middle of the sequence: keys of their own last block come after all of them.
          o.q_offsets = {500, 70, 100};
          shapes.push_back(o);
          o.q_offsets.clear();
        }
        o.operation = io::Operation::msa_decode;
        o.query_lengths = {4};
        shapes.push_back(o);
        o.operation = io::Operation::qsa;
        o.query_lengths = {37, 1, 20};
        o.block_size = 4;
        o.page_size = 16;
        o.topk = 30;
        o.group_size = 4;
        o.per_head_patterns = group == 4;
        shapes.push_back(o);
        o.query_lengths = {4};
        o.packed = false;
        shapes.push_back(o);
      }
    }
  }
  return shapes;
}

TEST_F(GpuHostile, NothingButAttendedTokensIsRead) {
  for (const io::GenerateOptions& o : poison_shapes()) {
    const io::Case poisoned = changed_indices(io::generate_case(o), [](io::Case&) {});
    EXPECT_EQ(check_on_gpu(poisoned), "") << io::generate_command(o);
  }
}

TEST_F(GpuHostile, TheLastBlockIsPoisonedPastEveryRow) {
  // Tiles whose rows end at each place of a block, one after the other and far apart, where the keys after the last row
  // are NaN and those between two rows are numbers.
  for (const bool qsa : {false, true}) {
    for (std::int64_t last = 250; last < 250 + (qsa ? 8 : 132); last += qsa ? 1 : 11) {
      io::GenerateOptions o;
      o.operation = qsa ? io::Operation::qsa : io::Operation::msa_prefill;
      o.num_qo_heads = 4;
      o.num_kv_heads = 1;
      o.head_dim = 128;
      o.query_lengths = {9};
      o.kv_lengths = {last + 1};
      o.spare_pages = 2;
      o.topk = 16;  // MSA: every visible block
      if (qsa) o.page_size = 64;
      if (qsa) o.block_size = 4;
      o.seed = static_cast<std::uint64_t>(last);
      const io::Case neighbours = io::generate_case(o);
      EXPECT_EQ(check_on_gpu(changed_indices(neighbours, [](io::Case&) {})), "") << "last position " << last;
      if (!qsa) continue;
      const io::Case apart = changed_indices(neighbours, [&](io::Case& c) {
        for (std::int64_t row = 0; row < 9; ++row) set_integer(c.qsa.query_positions, row, last - 23 * row);
      });
      EXPECT_EQ(check_on_gpu(apart), "") << "last position " << last << ", rows apart";
    }
  }
}

// ---- Rows and requests without keys --------------------------------------------------------------------------------

/// Checks the case, and that on every path so many rows have lse = -infinity and an output of exact zeros.
void expect_empty_rows(const io::Case& test_case, std::int64_t want) {
  EXPECT_EQ(check_on_gpu(test_case), "");
  for (const Path path : gpu_paths()) {
    io::CaseRun run(test_case, gpu_options(path), true, gpu);
    run.execute();
    const Tensor& lse = run.lse();
    const Tensor& out = run.out();
    const std::int64_t head_dim = out.shape[static_cast<std::size_t>(out.rank - 1)];
    const std::int64_t heads = out.shape[static_cast<std::size_t>(out.rank - 2)];
    std::int64_t empty = 0;
    for (std::int64_t i = 0; i < lse.numel(); ++i) {
      if (load_as_float(lse.data, lse.dtype, i) != -std::numeric_limits<float>::infinity()) continue;
      ++empty;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        ASSERT_EQ(load_as_float(out.data, out.dtype, i * head_dim + d), 0.0f) << path_name(path) << ", element " << i;
      }
    }
    EXPECT_EQ(empty, want * heads) << path_name(path);
  }
}

/// The same for a case made for every backend.
void expect_empty_rows(const CaseWithEmptyRows& made) {
  expect_empty_rows(changed_indices(made.test_case, [](io::Case&) {}), made.empty_rows);
}

TEST_F(GpuHostile, ZeroLengthRequestsAndPaddedDecodeRows) {
  for (const std::int64_t head_dim : {64, 128, 256}) expect_empty_rows(padded_decode(head_dim));
}

TEST_F(GpuHostile, RowsThatNoRequestOwns) {
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::qsa}) {
    for (const std::int64_t topk : {0, 3}) {
      io::GenerateOptions o = small_msa();
      o.operation = operation;
      o.batch_size = 2;
      o.query_lengths = {5, 9};
      o.kv_lengths = {95, 95};  // QSA: each row but those at the end of a block has a tail
      o.padding_rows = 7;
      o.topk = topk;
      const bool no_ids = operation == io::Operation::msa_prefill && topk == 0;
      if (operation == io::Operation::qsa) o.block_size = 32;
      if (operation == io::Operation::qsa) o.kv_lengths = {90, 90};
      expect_empty_rows(changed_indices(io::generate_case(o), [](io::Case&) {}), no_ids ? 21 : 7);
    }
  }
}

TEST_F(GpuHostile, NoRequests) {
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::qsa}) {
    for (const std::int64_t page_size : {32, 0}) {
      if (operation == io::Operation::qsa && page_size == 0) continue;
      io::GenerateOptions o = small_msa();
      o.operation = operation;
      o.page_size = page_size;
      o.batch_size = 0;
      o.query_lengths = o.kv_lengths = {1};
      o.padding_rows = 6;
      o.spare_pages = 2;
      expect_empty_rows(io::generate_case(o), 6);
    }
  }
}

TEST_F(GpuHostile, NoRowsNoRequestsNoPagesNoIds) {
  GuardedDeviceMemory memory;
  const std::int32_t zero = 0;
  const float one = 1.0f;
  const Tensor starts = memory.copy(Tensor(&zero, DType::i32, {1}));
  const Tensor scale = memory.copy(Tensor(&one, DType::f32, {1}));
  for (const Path path : gpu_paths()) {
    const CallOptions options = gpu_options(path);
    MsaArguments a = msa_of_nothing(gpu, scale);
    EXPECT_NO_THROW(msa_sparse_decode_attention(a, options)) << path_name(path);
    a.cu_seqlens_q = starts;
    EXPECT_NO_THROW(msa_sparse_attention(a, options)) << path_name(path);

    const QsaOfNothing qsa = qsa_of_nothing(gpu, starts);
    EXPECT_NO_THROW(QsaPlan(qsa.config).run(qsa.arguments, options)) << path_name(path);
    EXPECT_NO_THROW(cuda::synchronize(gpu.index));
  }
  EXPECT_TRUE(memory.intact());
}

TEST_F(GpuHostile, PageTablesWithoutColumns) {
  for (const io::Operation operation : {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa}) {
    expect_empty_rows(page_table_without_columns(operation));
  }
}

TEST_F(GpuHostile, FirstBlocksWhollyMasked) {
  for (const std::int64_t position : {0, 1, 15, 16, 40}) expect_empty_rows(first_blocks_masked(position));
}

TEST_F(GpuHostile, EarlierKeysOfATileMaskedForOneOfItsRows) {
  // Two requests' rows in one tile, in both orders: all keys of the one come before, or after, all keys of the other.
  for (const bool swap : {false, true}) {
    io::GenerateOptions o = small_msa();
    o.operation = io::Operation::qsa;
    o.block_size = 4;
    o.page_size = 64;
    o.topk = 64;
    o.batch_size = 2;
    o.query_lengths = {3, 3};
    o.kv_lengths = swap ? std::vector<std::int64_t>{3, 900} : std::vector<std::int64_t>{900, 3};
    o.group_size = 8;
    expect_empty_rows(changed_indices(io::generate_case(o), [](io::Case&) {}), 0);
  }
}

TEST_F(GpuHostile, OnlyMaskedBlocksSelected) { expect_empty_rows(only_masked_blocks()); }

}  // namespace
}  // namespace kvsieve::test
