// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernels in the emulator against the float64 reference. tests/emulator/attend_emulated.cpp is behind the
// CPU path here: it makes every call twice, in a workspace that ends at a protected page.
//
//   KVSIEVE_EMULATED_CONFIGS=N  runs N random calls (default 40), KVSIEVE_EMULATED_FIRST=N starts at call N.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "emulator/calls.hpp"
#include "io/generate.hpp"
#include "io/random.hpp"
#include "route/route_cuda.hpp"
#include "support/case_tools.hpp"
#include "support/guarded_memory.hpp"
#include "support/hostile_cases.hpp"

namespace kvsieve::test {
namespace {

std::int64_t environment_number(const char* name, std::int64_t standard) {
  const char* const text = std::getenv(name);
  return text == nullptr ? standard : std::strtoll(text, nullptr, 10);
}

std::int64_t one_of(io::Random& random, std::initializer_list<std::int64_t> values) {
  return values.begin()[random.below(values.size())];
}

/// MSA prefill and decode, or QSA: rows of a request that fill one of the kernels' row tiles, or just more; sometimes
/// many requests, also of no row.
void choose_rows(io::GenerateOptions& o, io::Random& random) {
  const bool qsa = o.operation == io::Operation::qsa;
  const std::int64_t group = one_of(random, {16, 12, 12, 8, 5, 4, 2, 1});
  o.num_kv_heads = one_of(random, {1, 1, 2, 3});
  o.num_qo_heads = group * o.num_kv_heads;
  const bool many = random.chance(0.25);
  o.batch_size = many ? 5 + random.below(16) : 1 + random.below(3);
  const std::int64_t pairs = one_of(random, {1, 16, 17, 32, 33, 48, 49, 64, 65, 96, 97, 128, 140, 200});
  const std::int64_t rows = many ? 1 + random.below(3) : std::max<std::int64_t>(pairs / group, 1);
  const bool uniform = o.operation == io::Operation::msa_decode || (qsa && random.chance(0.5));
  const bool is_short = random.chance(0.2);
  o.query_lengths = {rows};
  if (!uniform) o.query_lengths.clear();
  o.kv_lengths.clear();
  for (std::int64_t b = 0; b < o.batch_size; ++b) {
    const std::int64_t own = uniform ? rows : random.chance(0.15) ? 0 : 1 + random.below(2 * rows);
    if (!uniform) o.query_lengths.push_back(own);
    o.kv_lengths.push_back(own + random.below(is_short ? 6 : qsa ? 600 : 1500));
  }
  o.packed = qsa && (!uniform || random.chance(0.5));
  o.group_size = o.packed ? 1 + random.below(std::min<std::int64_t>(128 / group, 32)) : 1;
}

/// A call that a Hopper kernel takes.
io::GenerateOptions kernel_call(std::uint64_t seed, io::Random& random) {
  io::GenerateOptions o;
  o.seed = seed;
  const std::int64_t kind = random.below(4);
  o.operation = kind == 0 ? io::Operation::msa_prefill : kind == 1 ? io::Operation::msa_decode : io::Operation::qsa;
  const bool qsa = o.operation == io::Operation::qsa;
  o.head_dim = one_of(random, {64, 128, 128, 256});
  choose_rows(o, random);
  if (qsa) {
    o.block_size = one_of(random, {4, 4, 8, 16, 64, 128});
    o.topk = 1 + random.below(random.chance(0.3) ? 20 : 600 / o.block_size + 1);
    o.page_size = o.block_size == 128 ? 128 : one_of(random, {64, 128});
    o.gate = random.chance(0.3);
    o.per_head_patterns = random.chance(0.3);
    o.positions_i32 = random.chance(0.3);
  } else {
    o.block_size = one_of(random, {128, 128, 64, 16, 4});
    o.topk = 1 + random.below(14);
    o.page_size = random.chance(0.3) ? 0 : one_of(random, {128, 256});
    o.causal = random.chance(0.7);
    o.valid_prefix = random.chance(0.3);
  }
  o.q_dtype = random.chance(0.7) ? DType::bf16 : DType::f16;
  if (random.chance(0.5)) o.kv_dtype = DType::f8_e4m3;
  if (qsa && random.chance(0.15)) o.q_dtype = o.kv_dtype = DType::f8_e4m3;
  if (random.chance(0.2)) o.softmax_scale = random.chance(0.5) ? -0.1f : 0.0f;
  if (random.chance(0.3)) o.query_amplitude = 30.0f;
  if (o.q_dtype == DType::bf16 && random.chance(0.2)) {  // far outside f16
    o.query_amplitude = std::ldexp(1.0f, static_cast<int>(random.below(220)) - 100);
    o.softmax_scale = (random.chance(0.3) ? -0.3f : 0.3f) / o.query_amplitude;
  }
  o.replacement = static_cast<double>(one_of(random, {0, 5, 50, 100})) / 100.0;
  if (random.chance(0.3)) o.hostile = 0.2;
  o.spare_pages = random.below(3);
  o.row_gap = random.chance(0.2) ? 8 : 0;
  o.scale_tensors = random.chance(0.2);
  return o;
}

/// The ids become -1s, or repeat, or are out of range here and there.
void change_ids(io::Case& c, io::Random& random) {
  const Tensor& ids = c.is_msa() ? c.msa.q2k_indices : c.qsa.indexer_block_ids;
  const std::int64_t count = ids.numel();
  const std::int64_t topk = ids.shape[ids.rank - 1];
  const std::int64_t what = random.below(4);
  for (std::int64_t i = 0; i < count; ++i) {
    if (what == 0 || (what == 1 && i / topk % 2 == 0)) set_integer(ids, i, -1);
    if (what == 2) set_integer(ids, i, get_integer(ids, i - i % topk));
    if (what == 3 && random.chance(0.2)) set_integer(ids, i, random.chance(0.5) ? int_max : int_min);
  }
}

/// Some bf16 query rows become zeros or subnormal, or get an element far above the others.
void change_queries(const Tensor& q, io::Random& random, float amplitude) {
  if (q.dtype != DType::bf16) return;
  auto* const data = static_cast<std::uint16_t*>(q.data);
  const std::int64_t dim = q.shape[q.rank - 1];
  io::for_each_run(q, [&](std::int64_t row) {
    const std::int64_t what = random.below(6);
    if (what == 0) std::fill_n(data + row, dim, std::uint16_t{0x8000});
    if (what == 1) data[row + random.below(dim)] = float_to_bf16(20.0f * amplitude);
    for (std::int64_t d = 0; what == 2 && d < dim; ++d) data[row + d] = static_cast<std::uint16_t>(random.below(128));
  });
}

/// Runs calls first, first + 1, ... of `call`, which returns what it has made and changes of the case.
struct Call {
  io::GenerateOptions options;
  std::function<void(io::Case&)> change;
};
void check_calls(std::int64_t first, std::int64_t count, const std::function<Call(std::uint64_t)>& call) {
  std::int64_t failures = 0;
  for (std::int64_t i = first; i < first + count && failures < 5; ++i) {
    const Call made = call(static_cast<std::uint64_t>(i));
    const std::int64_t elsewhere = emulator::calls_elsewhere;
    std::string failure;
    try {
      const Guard guard = i % 2 == 0 ? Guard::after : Guard::before;
      failure =
          check_against_reference(guarded_copy(io::generate_case(made.options), guard, made.change), cpu_options(1));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (failure.empty() && emulator::calls_elsewhere != elsewhere) failure = "the Hopper kernels do not take the call";
    if (failure.empty()) continue;
    ++failures;
    ADD_FAILURE() << failure << "\n  call " << i << ", " << emulator::num_processors << " processors\n  "
                  << io::generate_command(made.options);
  }
}

TEST(Emulated, RandomCalls) {
  check_calls(environment_number("KVSIEVE_EMULATED_FIRST", 0), environment_number("KVSIEVE_EMULATED_CONFIGS", 40),
              [](std::uint64_t seed) {
                auto random = std::make_shared<io::Random>(seed);
                Call call;
                call.options = kernel_call(seed, *random);
                emulator::num_processors = static_cast<int>(one_of(*random, {1, 2, 3, 7, 32, 100, 132}));
                const float amplitude = call.options.query_amplitude;
                call.change = [random, amplitude](io::Case& c) {
                  if (random->chance(0.3)) change_queries(c.q(), *random, amplitude);
                  if (!random->chance(0.3)) return;
                  change_ids(c, *random);
                  make_finite(c.k());
                  make_finite(c.v());
                };
                return call;
              });
  for (const char* const name :
       {"attend_kernel (sm90)", "decode_kernel (sm90)", "build_routes_kernel", "combine_shares_kernel"}) {
    EXPECT_GT(emulator::launches[name], 0) << name;
  }
}

/// Long works that three and more thread blocks share, and works without keys between them.
TEST(Emulated, SharedWorks) {
  const std::int64_t before = emulator::launches["combine_shares_kernel"];
  check_calls(0, 6, [](std::uint64_t seed) {
    io::Random random(seed);
    Call call;
    io::GenerateOptions& o = call.options;
    o.seed = seed;
    o.operation = io::Operation::msa_prefill;
    o.head_dim = one_of(random, {64, 128, 256});
    o.num_kv_heads = 1 + random.below(2);
    o.num_qo_heads = (8 + random.below(9)) * o.num_kv_heads;
    o.batch_size = 1 + random.below(4);
    o.query_lengths.clear();
    o.kv_lengths.clear();
    for (std::int64_t b = 0; b < o.batch_size; ++b) {
      const std::int64_t rows = 20 + random.below(24);
      const std::int64_t keys = random.chance(0.25) ? 0 : rows + random.below(1200);
      o.query_lengths.push_back(rows);
      o.kv_lengths.push_back(keys);
      o.q_offsets.push_back(keys == 0 ? -5 : keys - rows);
    }
    o.block_size = random.chance(0.6) ? 128 : 16;
    o.topk = o.block_size == 128 ? 20 : 120;
    o.page_size = 128;
    if (random.chance(0.4)) o.kv_dtype = DType::f8_e4m3;
    o.replacement = 0.3;
    emulator::num_processors = static_cast<int>(one_of(random, {1, 3, 7, 13, 100, 132, 256}));
    return call;
  });
  EXPECT_GT(emulator::launches["combine_shares_kernel"], before);
}

/// Garbage in index tensors.
TEST(Emulated, HostileIndices) {
  check_calls(0, 30, [](std::uint64_t seed) {
    auto random = std::make_shared<io::Random>(seed + 77);
    Call call;
    io::GenerateOptions& o = call.options = kernel_call(seed, *random);
    o.hostile = 0;
    for (std::size_t b = 0; b < o.kv_lengths.size(); ++b) {  // garbage lengths make rows attend to far more
      std::int64_t& rows = o.query_lengths[o.query_lengths.size() == 1 ? 0 : b];
      rows = std::max<std::int64_t>(rows, 1);
      o.kv_lengths[b] = std::max(rows, std::min<std::int64_t>(o.kv_lengths[b], 300));
    }
    emulator::num_processors = static_cast<int>(one_of(*random, {1, 3, 32, 132}));
    call.change = [random](io::Case& c) {
      if (random->chance(0.5)) {
        const auto inputs = static_cast<std::int64_t>(index_inputs_of(c).size());
        const auto bad = bad_entries(c);
        spoil_input(c, static_cast<std::size_t>(random->below(inputs)), bad[random->below(bad.size())],
                    random->chance(0.5), *random);
      } else {
        spoil_all_inputs(c, static_cast<double>(one_of(*random, {5, 30, 90, 100})) / 100.0, *random);
      }
      make_finite(c.k());
      make_finite(c.v());
    };
    return call;
  });
}

/// Routes as long as the decode kernel takes them, whose rings are as short as they get.
TEST(Emulated, LongRoutes) {
  constexpr std::int64_t rows[] = {1, 2, 4, 8, 16, 32};
  check_calls(0, 6, [&rows](std::uint64_t seed) {
    Call call;
    io::GenerateOptions& o = call.options;
    o.seed = seed;
    o.operation = io::Operation::qsa;
    o.head_dim = seed % 3 == 0 ? 256 : seed % 3 == 1 ? 128 : 64;
    const std::int64_t num_rows = rows[seed % 6];
    o.num_kv_heads = 1;
    o.num_qo_heads = 1 + static_cast<std::int64_t>(seed % 2);
    o.block_size = 4;
    o.page_size = 64;
    o.topk = 2240 / num_rows - 1;
    o.query_lengths = {num_rows};
    o.kv_lengths = {10500};
    o.group_size = num_rows;
    o.packed = seed % 2 == 0;
    o.replacement = 1.0;
    if (seed % 4 == 0) o.kv_dtype = DType::f8_e4m3;
    emulator::num_processors = seed % 2 == 0 ? 40 : 132;
    return call;
  });
  EXPECT_EQ(emulator::most_splits, 16);
}

/// Requests of so many blocks that a route's table fills its place, and of a few more.
TEST(Emulated, WidePageTables) {
  constexpr std::int64_t route_words = 64 * 1024 / 4;
  std::uint64_t seed = 0;
  for (const std::int64_t rows : {1, 3, 8, 17}) {
    for (const std::int64_t pages_over : {0, 2}) {
      io::Random random(++seed);
      io::GenerateOptions o;
      o.seed = seed;
      o.operation = io::Operation::qsa;
      o.head_dim = 64;
      o.num_kv_heads = 1;
      o.num_qo_heads = 2;
      o.block_size = 4;
      o.page_size = 64;
      o.topk = 60;
      o.query_lengths = {rows};
      o.kv_lengths = {1024};
      o.group_size = rows;
      io::Case c = io::generate_case(o);
      const std::int64_t blocks = (route_words - 1 - rows * o.topk)
                                  << (5 - cuda::narrow_bits_shift(static_cast<int>(rows)));
      const std::int64_t pages = blocks / 16 + pages_over;
      auto table = std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(pages));
      for (std::int32_t& page : *table) page = static_cast<std::int32_t>(random.below(16));
      c.memory.push_back(table);
      c.qsa.block_table.data = table->data();
      c.qsa.block_table.shape[1] = c.qsa.block_table.stride[0] = pages;
      c.qsa_config.max_seq_len_kv = pages * 64;
      for (std::int64_t row = 0; row < rows; ++row) {
        set_integer(c.qsa.query_positions, row, pages * 64 - rows + row);
      }
      for (std::int64_t i = 0; i < rows * o.topk; ++i) {
        const std::int64_t id = random.chance(0.1) ? pages * 16 - 1 - random.below(3) : random.below(pages * 16);
        set_integer(c.qsa.indexer_block_ids, i, id);
      }
      make_finite(c.qsa.k_cache);
      make_finite(c.qsa.v_cache);
      emulator::num_processors = seed % 2 == 0 ? 40 : 3;
      EXPECT_EQ(check_against_reference(guarded_copy(c, Guard::after), cpu_options(1)), "")
          << rows << " rows, " << pages << " pages";
    }
  }
}

/// What is not finite in one query row stays there.
TEST(Emulated, NonFiniteQueriesStayInTheirRow) {
  constexpr std::int64_t rows = 6;
  constexpr std::int64_t heads = 5;
  constexpr std::int64_t bad_row = 13;
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const std::uint16_t bad : {0x7F80, 0xFF80, 0x7FC0}) {
      io::GenerateOptions o;
      o.operation = io::Operation::msa_decode;
      o.batch_size = 2;
      o.query_lengths = {rows / 2};
      o.kv_lengths = {700, 333};
      o.num_kv_heads = 1;
      o.num_qo_heads = heads;
      o.head_dim = dim;
      o.block_size = o.page_size = 128;
      o.topk = 4;
      if (bad != 0x7F80) o.kv_dtype = DType::f8_e4m3;
      emulator::num_processors = 8;
      const auto outputs = [&](bool spoiled) {
        io::Case c = io::generate_case(o);
        if (spoiled) static_cast<std::uint16_t*>(c.msa.q.data)[bad_row * dim + 7] = bad;
        io::CaseRun run(c, cpu_options(1));
        run.poison_outputs();
        run.execute();
        const auto* const out = static_cast<const std::uint16_t*>(run.out().data);
        return std::vector<std::uint16_t>(out, out + rows * heads * dim);
      };
      const std::vector<std::uint16_t> clean = outputs(false);
      const std::vector<std::uint16_t> spoiled = outputs(true);
      for (std::int64_t i = 0; i < rows * heads * dim; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i / dim == bad_row) continue;
        ASSERT_EQ(clean[at], spoiled[at]) << "dim " << dim << ", row " << i / dim;
      }
    }
  }
}

}  // namespace
}  // namespace kvsieve::test
