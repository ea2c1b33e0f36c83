// SPDX-License-Identifier: Apache-2.0
//
// Cases: metadata, layouts, round trips, comparison, and what the generator promises.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "io/case_run.hpp"
#include "io/generate.hpp"
#include "io/selection_walk.hpp"

namespace kvsieve::io {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

GenerateOptions small_msa() {
  GenerateOptions o;
  o.operation = Operation::msa_prefill;
  o.batch_size = 2;
  o.query_lengths = {3, 5};
  o.kv_lengths = {40, 70};
  o.num_qo_heads = 4;
  o.num_kv_heads = 2;
  o.head_dim = 64;
  o.block_size = 16;
  o.page_size = 16;
  o.topk = 2;
  o.spare_pages = 2;
  return o;
}

GenerateOptions small_qsa() {
  GenerateOptions o;
  o.operation = Operation::qsa;
  o.batch_size = 2;
  o.query_lengths = {3, 5};
  o.kv_lengths = {40, 70};
  o.num_qo_heads = 4;
  o.num_kv_heads = 2;
  o.head_dim = 64;
  o.block_size = 4;
  o.page_size = 8;
  o.topk = 5;
  o.group_size = 2;
  return o;
}

std::vector<std::byte> elements(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const OwnedTensor copy = make_tensor(tensor.dtype, std::span(tensor.shape).first(tensor.rank));
  copy_elements(tensor, copy.view);
  const auto* const data = static_cast<const std::byte*>(copy.view.data);
  return {data, data + static_cast<std::size_t>(copy.view.numel()) * dtype_size(tensor.dtype)};
}

// ---- Loading ----

/// Rewrites a valid case's file and returns what loading it says, "" for nothing.
std::string message_after(const GenerateOptions& options, const std::function<void(Metadata&)>& change_metadata,
                          const std::function<void(std::vector<TensorToWrite>&)>& change_tensors = nullptr) {
  const std::vector<std::byte> bytes = serialize_case(generate_case(options));
  const SafetensorsFile file = parse_safetensors(bytes, "f");
  Metadata metadata = file.metadata;
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.push_back({name, tensor});
  if (change_metadata) change_metadata(metadata);
  if (change_tensors) change_tensors(tensors);
  const std::vector<std::byte> changed = serialize_safetensors(metadata, tensors);
  try {
    CaseRun run(parse_case(changed, "f"), {});
    run.execute();
  } catch (const CaseError& error) {
    return error.what();
  }
  return "";
}

std::string with_metadata(const GenerateOptions& options, const std::string& key, const std::string& value) {
  return message_after(options, [&](Metadata& metadata) { metadata[key] = value; });
}
std::string without_metadata(const GenerateOptions& options, const std::string& key) {
  return message_after(options, [&](Metadata& metadata) { metadata.erase(key); });
}
std::string without_tensor(const GenerateOptions& options, const std::string& name) {
  return message_after(options, nullptr, [&](std::vector<TensorToWrite>& tensors) {
    std::erase_if(tensors, [&](const TensorToWrite& tensor) { return tensor.name == name; });
  });
}
std::string with_tensor(const GenerateOptions& options, const std::string& name,
                        const std::function<void(StoredTensor&)>& change) {
  return message_after(options, nullptr, [&](std::vector<TensorToWrite>& tensors) {
    for (TensorToWrite& tensor : tensors) {
      if (tensor.name == name) change(tensor.tensor);
    }
  });
}

TEST(CaseMetadata, AcceptedAsGenerated) {
  EXPECT_EQ(message_after(small_msa(), nullptr), "");
  EXPECT_EQ(message_after(small_qsa(), nullptr), "");
}

TEST(CaseMetadata, StrictValues) {
  const GenerateOptions msa = small_msa(), qsa = small_qsa();
  EXPECT_EQ(with_metadata(msa, "format", "kvsieve-case/2"),
            R"(f: metadata format: got "kvsieve-case/2", want kvsieve-case/1)");
  EXPECT_EQ(without_metadata(msa, "format"), "f: metadata format: not given, want kvsieve-case/1");
  EXPECT_EQ(with_metadata(msa, "op", "mla"), R"(f: metadata op: got "mla", want msa_prefill, msa_decode or qsa)");
  EXPECT_EQ(without_metadata(msa, "op"), "f: metadata op: not given, want msa_prefill, msa_decode or qsa");
  EXPECT_EQ(with_metadata(msa, "causal", "True"), R"(f: metadata causal: got "True", want true or false)");
  EXPECT_EQ(with_metadata(msa, "softmax_scale", "nan"),
            R"(f: metadata softmax_scale: got "nan", want a finite number)");
  EXPECT_EQ(with_metadata(msa, "softmax_scale", "inf"),
            R"(f: metadata softmax_scale: got "inf", want a finite number)");
  EXPECT_EQ(with_metadata(msa, "softmax_scale", "1e99"),
            R"(f: metadata softmax_scale: got "1e99", want a finite number)");
  EXPECT_EQ(with_metadata(msa, "softmax_scale", "0.1 "),
            R"(f: metadata softmax_scale: got "0.1 ", want a finite number)");
  EXPECT_EQ(with_metadata(msa, "softmax_scale", ""), R"(f: metadata softmax_scale: got "", want a finite number)");
  EXPECT_EQ(with_metadata(msa, "block_size", "99999999999999999999"),
            R"(f: metadata block_size: got "99999999999999999999", want an integer from 1 to 2147483647)");
  EXPECT_EQ(with_metadata(msa, "block_size", "16.0"),
            R"(f: metadata block_size: got "16.0", want an integer from 1 to 2147483647)");
  EXPECT_EQ(with_metadata(msa, "kv_layout", "dnh"),
            R"(f: metadata kv_layout: got "dnh", want hnd, nhd, packed_hnd or packed_nhd)");
  EXPECT_EQ(with_metadata(msa, "row_gap", "-1"), R"(f: metadata row_gap: got "-1", want an integer from 0 to 4096)");
  EXPECT_EQ(with_metadata(msa, "causal", std::string("a\nb")),
            R"(f: metadata causal: got "a\x0ab", want true or false)");
  EXPECT_EQ(with_metadata(qsa, "layout", "fixed"),
            R"(f: metadata layout: got "fixed", want packed, as q has 3 dimensions)");
  EXPECT_EQ(
      with_metadata(qsa, "share_pattern_across_kv_heads", "false"),
      R"(f: metadata share_pattern_across_kv_heads: got "false", want true, as indexer_block_ids has 2 dimensions)");
  EXPECT_EQ(with_metadata(qsa, "out_dtype", "F32"), R"(f: metadata out_dtype: got "F32", want BF16 or F16)");
  EXPECT_EQ(without_metadata(qsa, "group_size"),
            "f: metadata group_size: not given, want the rows of a group, as q is packed");
  EXPECT_EQ(without_metadata(qsa, "kv_block_size"), "f: metadata kv_block_size: not given, want the keys of a block");
}

TEST(CaseMetadata, LibraryValidationNamesTheFile) {
  EXPECT_EQ(with_metadata(small_msa(), "block_size", "12").find("f: tensor \"block_size\": got 12, want "), 0u);
  EXPECT_EQ(with_tensor(small_msa(), "page_table", [](StoredTensor& t) { t.dtype = DType::f32; })
                .find("f: tensor \"page_table\": got f32"),
            0u);
  EXPECT_EQ(without_tensor(small_msa(), "seqused_k").find("f: tensor \"seqused_k\": got "), 0u);
}

TEST(CaseTensors, MissingOrMisshapen) {
  for (const char* const name : {"q", "k", "v", "q2k_indices"}) {
    EXPECT_EQ(without_tensor(small_msa(), name), std::string("f: tensor \"") + name + "\": is missing");
  }
  for (const char* const name :
       {"q", "k_cache", "v_cache", "block_table", "indexer_block_ids", "token_to_request", "query_positions"}) {
    EXPECT_EQ(without_tensor(small_qsa(), name), std::string("f: tensor \"") + name + "\": is missing");
  }
  EXPECT_EQ(without_tensor(small_qsa(), "qo_indptr"), "f: tensor \"qo_indptr\": is missing, a packed q needs it");
  EXPECT_EQ(with_tensor(small_msa(), "q",
                        [](StoredTensor& t) {
                          t.shape = {8, 4 * 64};
                        }),
            "f: tensor \"q\": has 2 dimensions, want 3");
  EXPECT_EQ(with_tensor(small_qsa(), "q",
                        [](StoredTensor& t) {
                          t.shape = {1, 8, 4, 64};
                        }),
            "f: tensor \"q\": has 4 dimensions, want 3 (packed) or 5 (fixed)");
}

TEST(CaseTensors, ExpectedValuesHaveTheShapeOfTheOutputs) {
  Case test_case = generate_case(small_msa());
  test_case.expected.lse = test_case.keep(make_tensor(DType::f32, std::array{std::int64_t{8}, std::int64_t{3}}));
  const std::vector<std::byte> bytes = serialize_case(test_case);
  try {
    parse_case(bytes, "f");
    FAIL();
  } catch (const CaseError& error) {
    EXPECT_STREQ(error.what(),
                 "f: tensor \"expected.lse\": is f32[8, 3] on cpu, want f32 and the shape of q without "
                 "its last dimension");
  }
}

TEST(CaseTensors, UnknownOnesAreNoted) {
  const std::vector<std::byte> bytes = serialize_case(generate_case(small_msa()));
  SafetensorsFile file = parse_safetensors(bytes, "f");
  file.metadata["note"] = "captured on host 7";
  std::vector<TensorToWrite> tensors = {{"extra", {DType::f32, {0}, nullptr, 0}}};
  for (const auto& [name, tensor] : file.tensors) tensors.push_back({name, tensor});
  const std::vector<std::byte> changed = serialize_safetensors(file.metadata, tensors);
  EXPECT_EQ(parse_case(changed, "f").ignored, (std::vector<std::string>{"metadata \"note\"", "tensor \"extra\""}));
}

TEST(CaseTensors, MisalignedDataAreCopied) {
  const Case original = generate_case(small_msa());
  const std::vector<std::byte> bytes = serialize_case(original);
  std::vector<std::byte> shifted(bytes.size() + 1);
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  const Case moved = parse_case(std::span(shifted).subspan(1), "f");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved.msa.page_table.data) % 4, 0u);
  EXPECT_EQ(elements(moved.msa.k), elements(original.msa.k));
  EXPECT_EQ(elements(moved.msa.page_table), elements(original.msa.page_table));
}

// ---- Writing and reading back ----

void expect_same_case(const Case& a, const Case& b) {
  EXPECT_EQ(a.operation, b.operation);
  EXPECT_EQ(a.layout.kv, b.layout.kv);
  EXPECT_EQ(a.wants_lse_t, b.wants_lse_t);
  const auto same = [](const Tensor& x, const Tensor& y) {
    EXPECT_EQ(x.dtype, y.dtype);
    EXPECT_EQ(x.rank, y.rank);
    EXPECT_EQ(x.shape, y.shape);
    for (int i = 0; i < x.rank; ++i) {
      if (x.shape[i] > 1) {
        EXPECT_EQ(x.stride[i], y.stride[i]);
      }
    }
    EXPECT_EQ(elements(x), elements(y));
  };
  const auto same_scalar = [&](const Scalar& x, const Scalar& y) {
    ASSERT_EQ(x.index(), y.index());
    if (x.index() == 0) {
      EXPECT_EQ(std::get<float>(x), std::get<float>(y));
    } else {
      same(std::get<Tensor>(x), std::get<Tensor>(y));
    }
  };
  same(a.msa.q, b.msa.q);
  same(a.msa.k, b.msa.k);
  same(a.msa.v, b.msa.v);
  same(a.msa.q2k_indices, b.msa.q2k_indices);
  same(a.msa.cu_seqlens_q, b.msa.cu_seqlens_q);
  same(a.msa.cu_seqlens_k, b.msa.cu_seqlens_k);
  same(a.msa.page_table, b.msa.page_table);
  same(a.msa.seqused_k, b.msa.seqused_k);
  same(a.msa.q_offset, b.msa.q_offset);
  EXPECT_EQ(a.msa.seqlen_q, b.msa.seqlen_q);
  EXPECT_EQ(a.msa.causal, b.msa.causal);
  EXPECT_EQ(a.msa.valid_prefix, b.msa.valid_prefix);
  EXPECT_EQ(a.msa.block_size, b.msa.block_size);
  EXPECT_EQ(a.msa.softmax_scale, b.msa.softmax_scale);
  EXPECT_EQ(a.msa.lse_temperature_scale, b.msa.lse_temperature_scale);
  same_scalar(a.msa.k_global_scale, b.msa.k_global_scale);
  same_scalar(a.msa.v_global_scale, b.msa.v_global_scale);
  same(a.qsa.q, b.qsa.q);
  same(a.qsa.k_cache, b.qsa.k_cache);
  same(a.qsa.v_cache, b.qsa.v_cache);
  same(a.qsa.block_table, b.qsa.block_table);
  same(a.qsa.indexer_block_ids, b.qsa.indexer_block_ids);
  same(a.qsa.token_to_request, b.qsa.token_to_request);
  same(a.qsa.query_positions, b.qsa.query_positions);
  same(a.qsa.qo_indptr, b.qsa.qo_indptr);
  same(a.qsa.output_gate, b.qsa.output_gate);
  ASSERT_EQ(a.qsa.sm_scale.has_value(), b.qsa.sm_scale.has_value());
  if (a.qsa.sm_scale) same_scalar(*a.qsa.sm_scale, *b.qsa.sm_scale);
  same_scalar(a.qsa.v_scale, b.qsa.v_scale);
  const QsaConfig &c = a.qsa_config, &d = b.qsa_config;
  EXPECT_EQ(c.batch_size, d.batch_size);
  EXPECT_EQ(c.seq_len_q, d.seq_len_q);
  EXPECT_EQ(c.num_qo_heads, d.num_qo_heads);
  EXPECT_EQ(c.num_kv_heads, d.num_kv_heads);
  EXPECT_EQ(c.head_dim, d.head_dim);
  EXPECT_EQ(c.kv_block_size, d.kv_block_size);
  EXPECT_EQ(c.page_size, d.page_size);
  EXPECT_EQ(c.block_topk, d.block_topk);
  EXPECT_EQ(c.max_seq_len_kv, d.max_seq_len_kv);
  EXPECT_EQ(c.use_packed_q, d.use_packed_q);
  EXPECT_EQ(c.share_pattern_across_kv_heads, d.share_pattern_across_kv_heads);
  EXPECT_EQ(c.q_dtype, d.q_dtype);
  EXPECT_EQ(c.kv_dtype, d.kv_dtype);
  EXPECT_EQ(c.out_dtype, d.out_dtype);
  same(a.expected.out, b.expected.out);
  same(a.expected.lse, b.expected.lse);
  same(a.expected.lse_t, b.expected.lse_t);
}

void expect_round_trip(const GenerateOptions& options) {
  SCOPED_TRACE(generate_command(options));
  Case original = generate_case(options);
  add_reference_results(original);
  const std::vector<std::byte> bytes = serialize_case(original);
  expect_same_case(original, parse_case(bytes, "f"));
}

TEST(RoundTrip, Msa) {
  GenerateOptions o = small_msa();
  o.softmax_scale = 0.1f;
  o.k_scale = 0.5f;
  o.v_scale = 1.75f;
  o.lse_temperature_scale = 0.7f;
  o.valid_prefix = true;
  o.causal = false;
  expect_round_trip(o);
  o.scale_tensors = true;
  o.q_offsets = {3, 60};
  o.kv_dtype = DType::f8_e4m3;
  for (const std::int64_t page_size : {0, 16, 32}) {
    o.page_size = page_size;
    for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd, KvLayout::packed_nhd, KvLayout::packed_hnd}) {
      o.kv_layout = layout;
      o.row_gap = 8;
      o.index_gap = 3;
      expect_round_trip(o);
    }
  }
}

TEST(RoundTrip, MsaDecode) {
  GenerateOptions o = small_msa();
  o.operation = Operation::msa_decode;
  o.query_lengths = {4};
  o.hostile = 0.2;
  expect_round_trip(o);
  o.batch_size = 0;
  o.kv_lengths = {70};
  expect_round_trip(o);
}

TEST(RoundTrip, Qsa) {
  GenerateOptions o = small_qsa();
  expect_round_trip(o);
  o.gate = true;
  o.per_head_patterns = true;
  o.positions_i32 = true;
  o.padding_rows = 3;
  o.softmax_scale = 0.2f;
  o.max_seq_len_kv = 60;
  expect_round_trip(o);
  o.packed = false;
  o.padding_rows = 0;
  o.query_lengths = {4};
  o.row_gap = 8;
  o.q_dtype = DType::f8_e4m3;
  o.out_dtype = DType::f16;
  o.scale_tensors = true;
  o.kv_layout = KvLayout::packed_nhd;
  expect_round_trip(o);
}

// ---- Comparison ----

Tensor vector_of(std::vector<float>& values) {
  return Tensor(values.data(), DType::f32, {static_cast<std::int64_t>(values.size())});
}

OutError out_error(std::vector<float> got, std::vector<float> want) {
  return compare_out(vector_of(got), vector_of(want));
}
LseError lse_error(std::vector<float> got, std::vector<float> want) {
  return compare_lse(vector_of(got), vector_of(want));
}

TEST(Compare, OutErrorsAreRelativeToTheWhole) {
  const OutError error = out_error({3, 4, 0.5f}, {3, 4, 0});
  EXPECT_DOUBLE_EQ(error.frobenius, 0.1);
  EXPECT_DOUBLE_EQ(error.element, 0.125);
  EXPECT_EQ(error.worst, 2);
  EXPECT_EQ(describe(error, tolerance_for(DType::bf16)),
            "out: relative error 1.00e-01 exceeds 4e-03, worst at element 2");
  EXPECT_EQ(describe(out_error({1, 2}, {1, 2}), tolerance_for(DType::f16)), "");
}

TEST(Compare, OneElementMayNotBeFarOff) {
  std::vector<float> want(100000, 1.0f), got = want;
  got[77777] = 1.02f;
  const OutError error = compare_out(vector_of(got), vector_of(want));
  EXPECT_LT(error.frobenius, 1e-3);
  EXPECT_EQ(describe(error, tolerance_for(DType::bf16)),
            "out: element 77777 is off by 2.00e-02 of the largest magnitude, more than 1e-02");
}

TEST(Compare, TheOutputDTypeSetsTheBound) {
  const OutError error = out_error({1.002f, 1}, {1, 1});
  EXPECT_EQ(describe(error, tolerance_for(DType::bf16)), "");
  EXPECT_NE(describe(error, tolerance_for(DType::f16)), "");
}

TEST(Compare, NanAndInfinityFail) {
  for (const float bad : {std::nanf(""), infinity, -infinity}) {
    EXPECT_EQ(describe(out_error({1, bad}, {1, 1}), tolerance_for(DType::bf16)),
              "out: 1 elements are not finite, the first is element 1");
    EXPECT_NE(describe(out_error({1, 1}, {1, bad}), tolerance_for(DType::bf16)), "");
  }
  EXPECT_NE(describe(out_error({std::nanf("")}, {std::nanf("")}), tolerance_for(DType::bf16)), "");
}

TEST(Compare, AnAllZeroOutputMustBeExact) {
  EXPECT_EQ(describe(out_error({0, -0.0f}, {0, 0}), tolerance_for(DType::bf16)), "");
  EXPECT_EQ(out_error({0, 1e-30f}, {0, 0}).frobenius, std::numeric_limits<double>::infinity());
  EXPECT_NE(describe(out_error({0, 1e-30f}, {0, 0}), tolerance_for(DType::bf16)), "");
  EXPECT_EQ(describe(out_error({}, {}), tolerance_for(DType::bf16)), "");
}

TEST(Compare, LseMatchesInfinitiesExactly) {
  const Tolerance tolerance = tolerance_for(DType::bf16);
  EXPECT_EQ(describe(lse_error({-infinity, 1}, {-infinity, 1.001f}), tolerance), "");
  EXPECT_NE(describe(lse_error({-infinity, 1}, {0, 1}), tolerance), "");
  EXPECT_NE(describe(lse_error({-1e30f, 1}, {-infinity, 1}), tolerance), "");
  EXPECT_NE(describe(lse_error({infinity, 1}, {infinity, 1}), tolerance), "");
  EXPECT_NE(describe(lse_error({std::nanf("")}, {1}), tolerance), "");
  EXPECT_NE(describe(lse_error({std::nanf("")}, {std::nanf("")}), tolerance), "");
  EXPECT_EQ(describe(lse_error({0, 5.01f}, {0, 5}), tolerance, "lse_t"),
            "lse_t: element 1 is off by 1.00e-02, more than 2e-03");
}

TEST(Compare, ReadsStridedOutputs) {
  const OwnedTensor spaced = make_tensor(DType::bf16, std::array{std::int64_t{2}, std::int64_t{2}}, 1, 3);
  std::vector<float> want = {1, 2, 3, 4};
  const Tensor wanted(want.data(), DType::f32, {2, 2});
  for (int i = 0; i < 4; ++i) store_from_float(spaced.view.data, DType::bf16, i / 2 * 5 + i % 2, want[i]);
  EXPECT_EQ(compare_out(spaced.view, wanted).element, 0);
  EXPECT_TRUE(gaps_intact(spaced));
  store_from_float(spaced.view.data, DType::bf16, 3, 0);
  EXPECT_FALSE(gaps_intact(spaced));
}

// ---- The generator ----

TEST(Generator, IsTheSameOnEveryPlatform) {
  Random random(42);
  EXPECT_EQ(random.next(), 13679457532755275413u);  // splitmix64's published sequence
  EXPECT_EQ(random.next(), 2949826092126892291u);
  const auto hash = [](const GenerateOptions& options) {
    std::uint64_t value = 0xCBF29CE484222325;  // FNV-1a
    for (const std::byte byte : serialize_case(generate_case(options))) {
      value = (value ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3;
    }
    return value;
  };
  EXPECT_EQ(hash(small_msa()), 15321009280691847966u);
  EXPECT_EQ(hash(small_qsa()), 16596727189142986977u);
}

TEST(Generator, ValuesAreStandardNormal) {
  Random random(1);
  const int count = 200000;
  double sum = 0, squares = 0, fourths = 0;
  int beyond_two = 0;
  for (int i = 0; i < count; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    beyond_two += std::fabs(x) > 2 ? 1 : 0;
  }
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.01);
  EXPECT_NEAR(fourths / count, 2.9, 0.05);  // 3 - 6/5/12 for a sum of twelve
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455, 0.003);
}

TEST(Generator, TheMemoryLayoutDoesNotChangeTheValues) {
  GenerateOptions o = small_msa();
  const Case original = generate_case(o);
  o.kv_layout = KvLayout::packed_nhd;
  o.row_gap = 16;
  o.index_gap = 1;
  const Case changed = generate_case(o);
  EXPECT_EQ(elements(changed.msa.q), elements(original.msa.q));
  EXPECT_EQ(elements(changed.msa.k), elements(original.msa.k));
  EXPECT_EQ(elements(changed.msa.v), elements(original.msa.v));
  EXPECT_EQ(elements(changed.msa.q2k_indices), elements(original.msa.q2k_indices));
}

TEST(Generator, KvMemoryThatNoRequestOwnsIsNan) {
  const Case test_case = generate_case(small_msa());
  std::int64_t finite_tokens = 0;
  const Tensor& k = test_case.msa.k;
  for_each_run(k, [&](std::int64_t offset) {
    const bool finite = std::isfinite(load_as_float(k.data, k.dtype, offset));
    for (std::int64_t d = 0; d < k.shape[3]; ++d) {
      EXPECT_EQ(std::isfinite(load_as_float(k.data, k.dtype, offset + d)), finite);
    }
    finite_tokens += finite ? 1 : 0;
  });
  EXPECT_EQ(finite_tokens, (40 + 70) * 2);
  EXPECT_EQ(k.shape[0], 3 + 5 + 2);
}

TEST(Generator, PageTablesAreAPermutation) {
  GenerateOptions o = small_msa();
  o.batch_size = 1;
  o.query_lengths = {1};
  o.kv_lengths = {16 * 100};
  o.spare_pages = 0;
  const Case test_case = generate_case(o);
  const auto* const table = static_cast<const std::int32_t*>(test_case.msa.page_table.data);
  std::set<std::int32_t> pages(table, table + 100);
  EXPECT_EQ(pages.size(), 100u);
  EXPECT_EQ(*pages.begin(), 0);
  EXPECT_EQ(*pages.rbegin(), 99);
  EXPECT_FALSE(std::is_sorted(table, table + 100));
}

TEST(Generator, HostileIndicesReachEveryIndexTensor) {
  GenerateOptions msa = small_msa(), qsa = small_qsa();
  msa.hostile = qsa.hostile = 0.5;
  msa.q_offsets = {37, 65};
  GenerateOptions flat = msa;
  flat.page_size = 0;
  const Case a = generate_case(msa), f = generate_case(flat), b = generate_case(qsa);
  msa.hostile = flat.hostile = qsa.hostile = 0;
  const Case c = generate_case(msa), g = generate_case(flat), d = generate_case(qsa);
  const auto differ = [](const Tensor& x, const Tensor& y) { return elements(x) != elements(y); };
  EXPECT_TRUE(differ(a.msa.q2k_indices, c.msa.q2k_indices));
  EXPECT_TRUE(differ(a.msa.page_table, c.msa.page_table));
  EXPECT_TRUE(differ(a.msa.seqused_k, c.msa.seqused_k));
  EXPECT_TRUE(differ(a.msa.cu_seqlens_q, c.msa.cu_seqlens_q));
  EXPECT_TRUE(differ(a.msa.q_offset, c.msa.q_offset));
  EXPECT_TRUE(differ(f.msa.cu_seqlens_k, g.msa.cu_seqlens_k));
  EXPECT_TRUE(differ(b.qsa.block_table, d.qsa.block_table));
  EXPECT_TRUE(differ(b.qsa.indexer_block_ids, d.qsa.indexer_block_ids));
  EXPECT_TRUE(differ(b.qsa.token_to_request, d.qsa.token_to_request));
  EXPECT_TRUE(differ(b.qsa.query_positions, d.qsa.query_positions));
  EXPECT_TRUE(differ(b.qsa.qo_indptr, d.qsa.qo_indptr));
}

TEST(Generator, CommandNamesWhatDiffersFromTheDefaults) {
  GenerateOptions o = small_qsa();
  o.kv_layout = KvLayout::packed_hnd;
  o.packed = false;
  o.hostile = 0.25;
  o.seed = 18446744073709551615u;
  EXPECT_EQ(generate_command(o),
            "kvsieve generate --op=qsa --batch=2 --q-len=3,5 --kv-len=40,70 --heads=4 --kv-heads=2 --head-dim=64 "
            "--block-size=4 --topk=5 --page-size=8 --kv-layout=packed_hnd --packed=false --group-size=2 --hostile=0.25 "
            "--seed=18446744073709551615");
}

TEST(Generator, RefusesNonsense) {
  const auto message = [](auto&& change) -> std::string {
    GenerateOptions o = small_msa();
    change(o);
    try {
      generate_case(o);
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([](auto& o) { o.num_qo_heads = 5; }), "--heads: got 5, want a multiple of the 2 KV heads");
  EXPECT_EQ(message([](auto& o) { o.page_size = 24; }), "--page-size: got 24, want a multiple of the block size 16");
  EXPECT_EQ(message([](auto& o) {
              o.kv_lengths = {1, 2, 3};
            }),
            "--kv-len: got 3 values, want one, or one for each of the 2 requests");
  EXPECT_EQ(message([](auto& o) { o.replacement = 1.5; }), "--replacement: got 1.5, want a probability");
  EXPECT_EQ(message([](auto& o) { o.hostile = std::nan(""); }), "--hostile: got nan, want a probability");
  EXPECT_EQ(message([](auto& o) { o.operation = Operation::msa_decode; }),
            "--q-len: got different lengths, want the same length for all requests of a decode or fixed layout");
}

// ---- Selections ----

TEST(SelectionWalk, IdsAreDistinctVisibleAndIncludeTheNewest) {
  for (const double replacement : {0.0, 0.125, 1.0}) {
    SelectionWalk walk(16, replacement, true, Random(3));
    for (std::int64_t visible : {0, 1, 2, 5, 16, 17, 18, 40, 41, 400, 30, 3, 0, 7}) {
      const auto ids = walk.next(visible);
      ASSERT_EQ(static_cast<std::int64_t>(ids.size()), std::min<std::int64_t>(16, visible));
      const std::set<std::int32_t> distinct(ids.begin(), ids.end());
      EXPECT_EQ(distinct.size(), ids.size());
      if (visible == 0) continue;
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_EQ(*distinct.rbegin(), visible - 1);
    }
  }
}

TEST(SelectionWalk, EntriesAreReplacedAtTheGivenRate) {
  const std::int64_t topk = 512, visible = 100000;
  SelectionWalk walk(topk, 0.05, false, Random(5));
  std::vector<std::int32_t> before;
  std::int64_t replaced = 0;
  const int rows = 200;
  for (int row = 0; row <= rows; ++row) {
    const auto ids = walk.next(visible);
    for (std::size_t i = 0; i < before.size(); ++i) replaced += ids[i] != before[i] ? 1 : 0;
    before.assign(ids.begin(), ids.end());
  }
  EXPECT_NEAR(static_cast<double>(replaced) / (rows * topk), 0.05, 0.005);
}

TEST(SelectionWalk, ProbabilityOneGivesIndependentRows) {
  SelectionWalk walk(16, 1.0, false, Random(6));
  std::vector<int> counts(64, 0);
  std::int64_t kept = 0;
  std::set<std::int32_t> before;
  const int rows = 4000;
  for (int row = 0; row < rows; ++row) {
    const auto ids = walk.next(64);
    for (const std::int32_t id : ids) {
      ++counts[id];
      kept += before.contains(id) ? 1 : 0;
    }
    before = {ids.begin(), ids.end()};
  }
  EXPECT_NEAR(static_cast<double>(kept) / (rows * 16), 0.25, 0.02);  // 16 of 64 by chance
  for (const int count : counts) EXPECT_NEAR(count, rows * 0.25, rows * 0.05);
}

}  // namespace
}  // namespace kvsieve::io
