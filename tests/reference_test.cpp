// SPDX-License-Identifier: Apache-2.0
//
// The float64 reference against what can be computed by hand, and against dense attention under an explicit mask.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.hpp"

namespace kvsieve {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t head_dim = 64;

/// A row-major tensor with its memory, filled with NaN.
class Array {
 public:
  Array() = default;
  Array(DType dtype, std::initializer_list<std::int64_t> shape) : tensor_(nullptr, dtype, shape) {
    bytes_.assign(static_cast<std::size_t>(tensor_.numel()) * dtype_size(dtype), 0xFF);
    tensor_.data = bytes_.data();
  }
  Array(Array&&) = default;  // the memory of a moved vector stays where it is
  Array& operator=(Array&&) = default;

  const Tensor& view() const { return tensor_; }
  std::int64_t size() const { return tensor_.numel(); }
  double operator[](std::int64_t i) const { return load_as_float(tensor_.data, tensor_.dtype, i); }
  void set(std::int64_t i, double value) {
    store_from_float(tensor_.data, tensor_.dtype, i, static_cast<float>(value));
  }
  std::int32_t* ints() { return static_cast<std::int32_t*>(tensor_.data); }

 private:
  Tensor tensor_;
  std::vector<std::uint8_t> bytes_;
};

Array integers(const std::vector<std::int32_t>& values) {
  Array array(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), array.ints());
  return array;
}

void fill_random(Array& array, std::mt19937& random) {
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < array.size(); ++i) array.set(i, normal(random));
}

std::vector<std::int32_t> shuffled(std::int64_t count, std::mt19937& random) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  std::shuffle(values.begin(), values.end(), random);
  return values;
}

/// Dense attention in its textbook form: softmax over all keys of a request, where `attends(j)` says which count.
struct Dense {
  std::vector<double> out;
  double lse = 0.0;
};
Dense dense_attention(const Array& q, std::int64_t q_offset, std::int64_t num_keys, double scale,
                      const std::function<bool(std::int64_t)>& attends,
                      const std::function<double(std::int64_t, std::int64_t)>& key,
                      const std::function<double(std::int64_t, std::int64_t)>& value) {
  Dense result{std::vector<double>(head_dim, 0.0), 0.0};
  double sum = 0.0;
  for (std::int64_t j = 0; j < num_keys; ++j) {
    if (!attends(j)) continue;
    double dot = 0.0;
    for (std::int64_t d = 0; d < head_dim; ++d) dot += q[q_offset + d] * key(j, d);
    const double weight = std::exp(scale * dot);
    sum += weight;
    for (std::int64_t d = 0; d < head_dim; ++d) result.out[d] += weight * value(j, d);
  }
  for (double& x : result.out) x = sum > 0.0 ? x / sum : 0.0;
  result.lse = std::log(sum);
  return result;
}

/// A request-wise view of a paged cache: key(request, head, token, d).
struct PagedCache {
  Array k, v, table;
  std::int64_t page_size = 0;

  PagedCache(DType dtype, std::int64_t num_requests, std::int64_t heads, std::int64_t max_pages, std::int64_t page,
             std::mt19937& random)
      : k(dtype, {num_requests * max_pages, heads, page, head_dim}),
        v(dtype, {num_requests * max_pages, heads, page, head_dim}),
        table(DType::i32, {num_requests, max_pages}),
        page_size(page) {
    fill_random(k, random);
    fill_random(v, random);
    const auto pages = shuffled(num_requests * max_pages, random);
    std::copy(pages.begin(), pages.end(), table.ints());
  }
  std::int64_t offset(std::int64_t request, std::int64_t head, std::int64_t token) const {
    const std::int64_t max_pages = table.view().shape[1], heads = k.view().shape[1];
    const std::int64_t page =
        static_cast<const std::int32_t*>(table.view().data)[request * max_pages + token / page_size];
    return ((page * heads + head) * page_size + token % page_size) * head_dim;
  }
};

void expect_row(const reference::Row& got, std::int64_t head, const Dense& want, const std::string& where) {
  if (std::isinf(want.lse)) {
    EXPECT_EQ(got.lse[head], -infinity) << where;
  } else {
    EXPECT_NEAR(got.lse[head], want.lse, 1e-9) << where;
  }
  for (std::int64_t d = 0; d < head_dim; ++d) {
    EXPECT_NEAR(got.out[head * head_dim + d], want.out[d], 1e-9) << where << " d " << d;
  }
}

// ---- By hand -------------------------------------------------------------------------------------------------------

/// One row, one head, four flat keys; q and k have one non-zero component, so that logit j is logits[j].
struct TinyMsa {
  Array q{DType::bf16, {1, 1, head_dim}}, k{DType::bf16, {8, 1, head_dim}}, v{DType::bf16, {8, 1, head_dim}};
  Array cu_q = integers({0, 1}), cu_k = integers({0, 8}), ids{DType::i32, {1, 1, 2}};
  MsaArguments a;
  std::vector<double> out = std::vector<double>(head_dim), lse{0.0}, lse_t{0.0};

  explicit TinyMsa(const std::vector<double>& logits) {
    for (Array* array : {&q, &k, &v}) {
      for (std::int64_t i = 0; i < array->size(); ++i) array->set(i, 0.0);
    }
    q.set(0, 1.0);
    for (std::int64_t j = 0; j < 8; ++j) {
      k.set(j * head_dim, logits[j]);
      v.set(j * head_dim, static_cast<double>(j + 1));
    }
    ids.ints()[0] = 0;
    ids.ints()[1] = 1;
    a.q = q.view();
    a.k = k.view();
    a.v = v.view();
    a.cu_seqlens_q = cu_q.view();
    a.cu_seqlens_k = cu_k.view();
    a.q2k_indices = ids.view();
    a.softmax_scale = 1.0f;
    a.block_size = 4;
  }
  void run() { reference::msa_row(a, /*decode=*/false, 0, {out.data(), lse.data(), lse_t.data()}); }
};

TEST(MsaReference, EqualLogitsAverageTheValues) {
  TinyMsa tiny(std::vector<double>(8, 0.0));
  tiny.run();
  EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(8.0));
  EXPECT_DOUBLE_EQ(tiny.out[0], 4.5);
  EXPECT_EQ(tiny.out[1], 0.0);
}

TEST(MsaReference, WeightsAndScales) {
  TinyMsa tiny({0, 2, 0, 0, 0, 0, 0, 0});
  tiny.cu_k.ints()[1] = 2;  // keys 0 and 1 only
  tiny.a.softmax_scale = 0.5f;
  tiny.a.k_global_scale = 3.0f;
  float v_scale = 10.0f;
  tiny.a.v_global_scale = Tensor(&v_scale, DType::f32, {1});
  tiny.a.lse_temperature_scale = 2.0f;
  tiny.run();
  const double e = std::exp(3.0);  // logits 0 and 0.5 * 3 * 2
  EXPECT_NEAR(tiny.lse[0], std::log(1.0 + e), 1e-12);
  EXPECT_NEAR(tiny.lse_t[0], std::log(1.0 + e * e), 1e-12);
  EXPECT_NEAR(tiny.out[0], 10.0 * (1.0 + 2.0 * e) / (1.0 + e), 1e-12);
}

TEST(MsaReference, HugeLogitsDoNotOverflow) {
  TinyMsa tiny({1e4, 1e4, 0, 0, 0, 0, 0, -1e4});
  tiny.run();
  EXPECT_NEAR(tiny.lse[0], bf16_to_float(float_to_bf16(1e4f)) + std::log(2.0), 1e-9);
  EXPECT_NEAR(tiny.out[0], 1.5, 1e-12);
}

TEST(MsaReference, IdsAreASetAndOthersAreSkipped) {
  TinyMsa tiny(std::vector<double>(8, 0.0));
  tiny.ids.ints()[0] = 1;
  for (const std::int32_t other :
       {1, -1, 2, 1 << 29, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    tiny.ids.ints()[1] = other;
    tiny.run();
    EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(4.0)) << other;
    EXPECT_DOUBLE_EQ(tiny.out[0], 6.5) << other;
  }
}

TEST(MsaReference, CausalLimitFollowsThePosition) {
  TinyMsa tiny(std::vector<double>(8, 0.0));
  Array offset = integers({2});
  tiny.a.q_offset = offset.view();
  for (const std::int32_t position : {0, 2, 5, 7, 100}) {
    offset.ints()[0] = position;
    tiny.run();
    EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(std::min(position + 1, 8))) << position;
  }
  offset.ints()[0] = -1;
  tiny.run();
  EXPECT_EQ(tiny.lse[0], -infinity);
  EXPECT_EQ(tiny.lse_t[0], -infinity);
  EXPECT_EQ(tiny.out[0], 0.0);
  tiny.a.causal = false;
  tiny.run();
  EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(8.0));
}

TEST(MsaReference, ValidPrefixCountsVisibleBlocks) {
  TinyMsa tiny(std::vector<double>(8, 0.0));
  Array offset = integers({3});  // block 0 is visible, so that one id counts
  tiny.a.q_offset = offset.view();
  tiny.a.valid_prefix = true;
  tiny.run();
  EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(4.0));
  std::swap(tiny.ids.ints()[0], tiny.ids.ints()[1]);  // now the one id that counts is masked
  tiny.run();
  EXPECT_EQ(tiny.lse[0], -infinity);
  offset.ints()[0] = 4;
  tiny.run();
  EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(5.0));
}

TEST(MsaReference, RangesThatAreWrongMakeTheRequestEmpty) {
  const std::pair<std::int32_t, std::int32_t> ranges[] = {
      {-1, 8}, {0, 9}, {5, 4}, {std::numeric_limits<std::int32_t>::min(), 8}};
  for (const auto& [begin, end] : ranges) {
    TinyMsa tiny(std::vector<double>(8, 0.0));
    tiny.a.causal = false;
    tiny.cu_k.ints()[0] = begin;
    tiny.cu_k.ints()[1] = end;
    tiny.run();
    EXPECT_EQ(tiny.lse[0], -infinity) << begin << " " << end;
    EXPECT_EQ(reference::msa_bad_indices(tiny.a, false), 1);
  }
}

TEST(MsaReference, FirstRequestThatOwnsARowWins) {
  TinyMsa tiny({0, 0, 0, 0, 0, 0, 0, 0});
  const Array cu_q = integers({0, 0, 1, 0, 1}), cu_k = integers({0, 1, 3, 4, 8});
  tiny.a.cu_seqlens_q = cu_q.view();
  tiny.a.cu_seqlens_k = cu_k.view();
  tiny.run();  // request 0 has no row, 1 has it, 2 has a negative number, 3 would have it too
  EXPECT_DOUBLE_EQ(tiny.lse[0], std::log(2.0));
  EXPECT_DOUBLE_EQ(tiny.out[0], 2.5);
}

// ---- Against dense attention ---------------------------------------------------------------------------------------

TEST(MsaReference, PagedPrefillEqualsDenseAttentionUnderTheMask) {
  std::mt19937 random(1);
  constexpr std::int64_t block = 8, page = 16, heads = 6, kv_heads = 2, topk = 3;
  const std::vector<std::int32_t> cu_q_values = {0, 5, 5, 9}, lengths = {37, 20, 3};
  for (const bool causal : {true, false}) {
    for (const DType kv_dtype : {DType::bf16, DType::f8_e4m3}) {
      PagedCache cache(kv_dtype, 3, kv_heads, 4, page, random);
      Array q(DType::bf16, {9, heads, head_dim}), ids(DType::i32, {kv_heads, 9, topk});
      fill_random(q, random);
      for (std::int64_t i = 0; i < ids.size(); ++i) ids.ints()[i] = static_cast<std::int32_t>(random() % 7) - 1;
      const Array cu_q = integers(cu_q_values), used = integers(lengths);

      MsaArguments a;
      a.q = q.view();
      a.k = cache.k.view();
      a.v = cache.v.view();
      a.page_table = cache.table.view();
      a.cu_seqlens_q = cu_q.view();
      a.seqused_k = used.view();
      a.q2k_indices = ids.view();
      a.causal = causal;
      a.block_size = block;
      std::vector<double> out(heads * head_dim), lse(heads);
      for (std::int64_t row = 0; row < 9; ++row) {
        const reference::Row got{out.data(), lse.data(), nullptr};
        reference::msa_row(a, false, row, got);
        const std::int64_t request = row < 5 ? 0 : 2;
        const std::int64_t length = lengths[request];
        const std::int64_t position = length - (request == 0 ? 5 : 4) + (row - (request == 0 ? 0 : 5));
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t kv_head = head / (heads / kv_heads);
          const std::int32_t* selected = ids.ints() + (kv_head * 9 + row) * topk;
          const auto attends = [&](std::int64_t j) {
            return (!causal || j <= position) && std::count(selected, selected + topk, j / block) > 0;
          };
          const auto key = [&](std::int64_t j, std::int64_t d) {
            return cache.k[cache.offset(request, kv_head, j) + d];
          };
          const auto value = [&](std::int64_t j, std::int64_t d) {
            return cache.v[cache.offset(request, kv_head, j) + d];
          };
          expect_row(got, head, dense_attention(q, (row * heads + head) * head_dim, length, 0.125, attends, key, value),
                     "row " + std::to_string(row) + " head " + std::to_string(head));
        }
      }
    }
  }
}

TEST(MsaReference, WholeCallRoundsTheRows) {
  std::mt19937 random(2);
  constexpr std::int64_t heads = 4, kv_heads = 2, rows = 6;
  Array q(DType::f16, {rows, heads, head_dim}), k(DType::f16, {40, kv_heads, head_dim}),
      v(DType::f16, {40, kv_heads, head_dim});
  for (Array* array : {&q, &k, &v}) fill_random(*array, random);
  Array ids(DType::i32, {kv_heads, rows, 2}), cu_k = integers({0, 18, 40});
  for (std::int64_t i = 0; i < ids.size(); ++i) ids.ints()[i] = static_cast<std::int32_t>(random() % 5);
  Array out(DType::f16, {rows, heads, head_dim}), lse(DType::f32, {heads, rows}), lse_t(DType::f32, {rows, heads});

  MsaArguments a;
  a.q = q.view();
  a.k = k.view();
  a.v = v.view();
  a.cu_seqlens_k = cu_k.view();
  a.q2k_indices = ids.view();
  a.seqlen_q = 3;
  a.block_size = 4;
  a.lse_temperature_scale = 0.5f;
  a.out = out.view();
  a.lse = Tensor(lse.view().data, DType::f32, {rows, heads}, {1, rows});
  a.lse_t = lse_t.view();
  reference::msa(a, /*decode=*/true);

  std::vector<double> row_out(heads * head_dim), row_lse(heads), row_lse_t(heads);
  for (std::int64_t row = 0; row < rows; ++row) {
    reference::msa_row(a, true, row, {row_out.data(), row_lse.data(), row_lse_t.data()});
    for (std::int64_t head = 0; head < heads; ++head) {
      EXPECT_EQ(lse[head * rows + row], static_cast<float>(row_lse[head]));
      EXPECT_EQ(lse_t[row * heads + head], static_cast<float>(row_lse_t[head]));
    }
    for (std::int64_t i = 0; i < heads * head_dim; ++i) {
      EXPECT_EQ(out[row * heads * head_dim + i], f16_to_float(float_to_f16(static_cast<float>(row_out[i]))));
    }
  }
}

struct QsaShape {
  bool packed, shared, gate;
};

class QsaReference : public testing::TestWithParam<QsaShape> {};

TEST_P(QsaReference, EqualsDenseAttentionUnderTheMask) {
  const QsaShape shape = GetParam();
  std::mt19937 random(3);
  constexpr std::int64_t block = 4, page = 8, heads = 6, kv_heads = 2, topk = 3, rows = 12, requests = 2, max_pages = 5;
  PagedCache cache(DType::bf16, requests, kv_heads, max_pages, page, random);
  Array q(DType::bf16, {rows, heads, head_dim}), gate(DType::bf16, {rows, heads, head_dim});
  fill_random(q, random);
  fill_random(gate, random);
  const Array requests_of_rows = integers({0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1});
  const std::vector<std::int32_t> position_values = {0, 1, 2, 3, 4, 7, 30, 31, 32, 39, 11, 12};
  const Array positions = integers(position_values), bounds = integers({0, 3, 6, 9, 12});
  const std::int64_t lists = shape.shared ? 1 : kv_heads;
  Array ids(DType::i32, {rows, lists, topk});  // distinct completed blocks, then garbage
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t done = (position_values[row] + 1) / block;
    for (std::int64_t list = 0; list < lists; ++list) {
      const auto blocks = shuffled(done, random);
      for (std::int64_t i = 0; i < topk; ++i) {
        ids.ints()[(row * lists + list) * topk + i] = i < done ? blocks[i] : static_cast<std::int32_t>(random() % 9);
      }
    }
  }

  QsaConfig config{.batch_size = 4,
                   .seq_len_q = 3,
                   .num_qo_heads = heads,
                   .num_kv_heads = kv_heads,
                   .head_dim = head_dim,
                   .kv_block_size = block,
                   .page_size = page,
                   .block_topk = topk,
                   .max_seq_len_kv = max_pages * page,
                   .use_packed_q = shape.packed,
                   .share_pattern_across_kv_heads = shape.shared};
  const auto rows_of = [&](const Array& array) {
    return shape.packed ? array.view() : Tensor(array.view().data, array.view().dtype, {2, 2, 3, heads, head_dim});
  };
  QsaArguments a;
  a.q = rows_of(q);
  a.k_cache = cache.k.view();
  a.v_cache = cache.v.view();
  a.block_table = cache.table.view();
  a.indexer_block_ids = shape.shared ? Tensor(ids.view().data, DType::i32, {rows, topk}) : ids.view();
  a.token_to_request = requests_of_rows.view();
  a.query_positions = positions.view();
  if (shape.packed) a.qo_indptr = bounds.view();
  a.v_scale = 2.0f;
  if (shape.gate) a.output_gate = rows_of(gate);

  EXPECT_EQ(reference::qsa_bad_indices(config, a), 0);
  std::vector<double> out(heads * head_dim), lse(heads);
  for (std::int64_t row = 0; row < rows; ++row) {
    const reference::Row got{out.data(), lse.data(), nullptr};
    reference::qsa_row(config, a, row, got);
    const std::int64_t request = row / 3 % 2, position = position_values[row], done = (position + 1) / block;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t kv_head = head / (heads / kv_heads);
      const std::int32_t* selected = ids.ints() + (row * lists + (shape.shared ? 0 : kv_head)) * topk;
      const std::int64_t counting = std::min(topk, done);
      const auto attends = [&](std::int64_t j) {
        return j >= done * block || std::count(selected, selected + counting, j / block) > 0;
      };
      const auto key = [&](std::int64_t j, std::int64_t d) { return cache.k[cache.offset(request, kv_head, j) + d]; };
      const auto value = [&](std::int64_t j, std::int64_t d) {
        return 2.0 * cache.v[cache.offset(request, kv_head, j) + d];
      };
      const std::int64_t first = (row * heads + head) * head_dim;
      Dense want = dense_attention(q, first, position + 1, 0.125, attends, key, value);
      for (std::int64_t d = 0; shape.gate && d < head_dim; ++d) {
        // The rounded attention times the sigmoid; the reference's sigmoid is in float32.
        const double rounded = bf16_to_float(float_to_bf16(static_cast<float>(want.out[d])));
        want.out[d] = rounded * (1.0f / (1.0f + std::exp(-static_cast<float>(gate[first + d]))));
      }
      expect_row(got, head, want, "row " + std::to_string(row) + " head " + std::to_string(head));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QsaReference,
                         testing::Values(QsaShape{true, true, false}, QsaShape{true, false, true},
                                         QsaShape{false, true, true}, QsaShape{false, false, false}),
                         [](const auto& test) {
                           return std::string(test.param.packed ? "Packed" : "Fixed") +
                                  (test.param.shared ? "Shared" : "PerHead") + (test.param.gate ? "Gate" : "");
                         });

TEST(QsaReferenceRows, OutOfRangeRowsAreEmptyAndCounted) {
  std::mt19937 random(4);
  constexpr std::int64_t rows = 7, heads = 2;
  PagedCache cache(DType::bf16, 2, 1, 2, 8, random);
  cache.table.ints()[3] = 99;  // second page of request 1
  Array q(DType::bf16, {rows, heads, head_dim}), ids(DType::i32, {rows, 2});
  fill_random(q, random);
  std::fill_n(ids.ints(), ids.size(), 0);
  ids.ints()[2 * 6 + 1] = 2;  // a block of the bad page
  // Padding before the first group; a negative position; a request out of range; a position out of range; both; a row
  // that loses its tail and one block to the bad page.
  const Array requests = integers({0, 0, 2, 1, -1, 0, 1});
  const Array positions = integers({5, -3, 5, 16, 17, 3, 13});
  const Array bounds = integers({1, 7});
  const QsaConfig config{.batch_size = 1,
                         .seq_len_q = 7,
                         .num_qo_heads = heads,
                         .num_kv_heads = 1,
                         .head_dim = head_dim,
                         .kv_block_size = 4,
                         .page_size = 8,
                         .block_topk = 2,
                         .max_seq_len_kv = 16,
                         .use_packed_q = true};
  QsaArguments a;
  a.q = q.view();
  a.k_cache = cache.k.view();
  a.v_cache = cache.v.view();
  a.block_table = cache.table.view();
  a.indexer_block_ids = ids.view();
  a.token_to_request = requests.view();
  a.query_positions = positions.view();
  a.qo_indptr = bounds.view();
  a.sm_scale = 0.0f;

  std::vector<double> out(heads * head_dim), lse(heads);
  for (std::int64_t row = 0; row < rows; ++row) {
    reference::qsa_row(config, a, row, {out.data(), lse.data(), nullptr});
    EXPECT_DOUBLE_EQ(lse[0], row >= 5 ? std::log(4.0) : -infinity) << row;
    if (row < 5) {
      EXPECT_EQ(out, std::vector<double>(heads * head_dim, 0.0)) << row;
    }
  }
  EXPECT_EQ(reference::qsa_bad_indices(config, a), 1 + 1 + 2 + 2);
}

// ---- Merge ---------------------------------------------------------------------------------------------------------

TEST(MergeReference, TwoHalvesMakeTheWhole) {
  std::mt19937 random(5);
  constexpr std::int64_t rows = 5, heads = 4, blocks = 6, topk = 6;
  Array q(DType::bf16, {rows, heads, head_dim}), k(DType::bf16, {blocks * 4, 1, head_dim}),
      v(DType::bf16, {blocks * 4, 1, head_dim});
  for (Array* array : {&q, &k, &v}) fill_random(*array, random);
  const Array cu_k = integers({0, blocks * 4}), cu_q = integers({0, rows});
  Array outs(DType::f32, {3, rows, heads, head_dim}), lses(DType::f32, {3, rows, heads});
  Array ids(DType::i32, {1, rows, topk}), out(DType::f32, {rows, heads, head_dim}), lse(DType::f32, {rows, heads});

  MsaArguments a;
  a.q = q.view();
  a.k = k.view();
  a.v = v.view();
  a.cu_seqlens_k = cu_k.view();
  a.cu_seqlens_q = cu_q.view();
  a.q2k_indices = ids.view();
  a.causal = false;
  a.block_size = 4;
  // States 0 and 2 have blocks of their own; row 0 has nothing in state 0, and no row has anything in state 1, whose
  // outputs stay NaN.
  const auto run = [&](std::int64_t state, const std::function<bool(std::int64_t, std::int64_t)>& selects) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        ids.ints()[row * topk + b] = selects(row, b) ? static_cast<std::int32_t>(b) : -1;
      }
    }
    a.out = state < 0 ? out.view()
                      : Tensor(static_cast<float*>(outs.view().data) + state * rows * heads * head_dim, DType::f32,
                               {rows, heads, head_dim});
    a.lse = state < 0 ? lse.view()
                      : Tensor(static_cast<float*>(lses.view().data) + state * rows * heads, DType::f32, {rows, heads});
    reference::msa(a, false);
  };
  run(0, [](std::int64_t row, std::int64_t b) { return row != 0 && b % 2 == 0; });
  run(2, [](std::int64_t row, std::int64_t b) { return row == 0 || b % 2 == 1; });
  for (std::int64_t i = 0; i < rows * heads; ++i) lses.set(rows * heads + i, -infinity);
  run(-1, [](std::int64_t, std::int64_t) { return true; });

  Array merged(DType::f32, {rows, heads, head_dim}), merged_lse(DType::f32, {rows, heads});
  reference::merge({outs.view(), lses.view(), merged.view(), merged_lse.view()});
  for (std::int64_t i = 0; i < merged.size(); ++i) EXPECT_NEAR(merged[i], out[i], 1e-6) << i;
  for (std::int64_t i = 0; i < merged_lse.size(); ++i) EXPECT_NEAR(merged_lse[i], lse[i], 1e-6) << i;
}

TEST(MergeReference, AllStatesEmpty) {
  Array outs(DType::bf16, {2, 1, 1, head_dim}), lses(DType::f32, {2, 1, 1}), out(DType::bf16, {1, 1, head_dim}),
      lse(DType::f32, {1, 1});
  lses.set(0, -infinity);
  lses.set(1, -infinity);
  reference::merge({outs.view(), lses.view(), out.view(), lse.view()});
  for (std::int64_t d = 0; d < head_dim; ++d) EXPECT_EQ(out[d], 0.0);
  EXPECT_EQ(lse[0], -infinity);
}

}  // namespace
}  // namespace kvsieve
