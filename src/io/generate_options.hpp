// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/case.hpp"

namespace kvsieve::io {

/// What a random case looks like. Fields left at `of_the_model` take the model's value: MiniMax-M3's for MSA,
/// Qwen3.8-Flash-Next's for QSA.
struct GenerateOptions {
  static constexpr std::int64_t of_the_model = -1;

  Operation operation = Operation::msa_prefill;

  // Requests. Lists hold one value for all requests, or one per request.
  std::int64_t batch_size = 1;
  std::vector<std::int64_t> query_lengths = {1};
  std::vector<std::int64_t> kv_lengths = {1024};  ///< with the query tokens, whose positions are the last ones
  std::vector<std::int64_t> q_offsets;            ///< MSA: gives q_offset when not empty
  /// Query rows past the last request's, which no request owns.
  std::int64_t padding_rows = 0;

  // Shape.
  std::int64_t num_qo_heads = of_the_model;
  std::int64_t num_kv_heads = of_the_model;
  std::int64_t head_dim = of_the_model;
  std::int64_t block_size = of_the_model;
  std::int64_t topk = of_the_model;
  /// Tokens per page; 0 for a flat cache (MSA).
  std::int64_t page_size = of_the_model;
  /// Physical pages that no request uses (flat: tokens, half of them before the first request).
  std::int64_t spare_pages = 0;

  // Types and memory.
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::none;       ///< none: q_dtype
  DType out_dtype = DType::none;      ///< QSA; none: q_dtype, bf16 when that is f8_e4m3
  std::optional<KvLayout> kv_layout;  ///< row-major when not given
  std::int64_t row_gap = 0;
  std::int64_t index_gap = 0;

  // MSA.
  bool causal = true;
  bool valid_prefix = false;
  std::optional<float> lse_temperature_scale;

  // QSA.
  bool packed = true;
  std::int64_t group_size = 1;
  bool per_head_patterns = false;
  bool gate = false;
  bool positions_i32 = false;
  std::optional<std::int64_t> max_seq_len_kv;

  // Scalars.
  std::optional<float> softmax_scale;
  float k_scale = 1.0f;  ///< MSA
  float v_scale = 1.0f;
  /// Gives the scales as one-element tensors.
  bool scale_tensors = false;

  // Contents.
  /// Factor on the queries: large ones make large logits.
  float query_amplitude = 1.0f;
  /// Probability that an entry of the predecessor's selection is replaced; negative: 0.125 for MSA, 0.05 for QSA.
  double replacement = -1;
  /// Probability that an entry of an index tensor is garbage: -1, INT_MIN, INT_MAX, the first id past the end, or
  /// random bits. The case stays legal, and no NaN can be reached.
  double hostile = 0;
  std::uint64_t seed = 0;
};

/// The options with the model's values filled in. Throws ArgumentError, in the name of the option, for what cannot be
/// generated.
GenerateOptions resolved(GenerateOptions options);

/// The command that writes the same case: "kvsieve generate --op qsa ...".
std::string generate_command(const GenerateOptions& options);

/// Calls `visit(name, member, help)`, member being a pointer to the field, for each option of `kvsieve generate` but
/// --op: one list for the command's parser and for generate_command.
template <class Visit>
void for_each_option(Visit&& visit) {
  using O = GenerateOptions;
  visit("--batch", &O::batch_size, "Number of requests");
  visit("--q-len", &O::query_lengths, "Query rows of each request, one value or one per request");
  visit("--kv-len", &O::kv_lengths, "KV length of each request, query tokens included, one value or one per request");
  visit("--q-offset", &O::q_offsets, "MSA: position of each request's first row, one value or one per request");
  visit("--padding-rows", &O::padding_rows, "Query rows that no request owns, at the end");
  visit("--heads", &O::num_qo_heads, "Query heads (default 64 for MSA, 12 for QSA)");
  visit("--kv-heads", &O::num_kv_heads, "KV heads (default 4, 1)");
  visit("--head-dim", &O::head_dim, "Head dimension (default 128, 256)");
  visit("--block-size", &O::block_size, "Keys per block (default 128, 4)");
  visit("--topk", &O::topk, "Blocks that a row selects (default 16, 512)");
  visit("--page-size", &O::page_size, "Tokens per page, 0 for a flat MSA cache (default 128, 64)");
  visit("--spare-pages", &O::spare_pages, "Pages that no request uses (flat cache: tokens)");
  visit("--q-dtype", &O::q_dtype, "bf16, f16 or f8_e4m3 (QSA)");
  visit("--kv-dtype", &O::kv_dtype, "q-dtype (default) or f8_e4m3");
  visit("--out-dtype", &O::out_dtype, "QSA: bf16 or f16 (default q-dtype)");
  visit("--kv-layout", &O::kv_layout, "hnd, nhd, packed_hnd or packed_nhd (default row-major)");
  visit("--row-gap", &O::row_gap, "Unused elements after each row of q, output_gate and out");
  visit("--index-gap", &O::index_gap, "Unused elements after each row of the index tensors");
  visit("--causal", &O::causal, "MSA: causal masking");
  visit("--valid-prefix", &O::valid_prefix, "MSA: only the first min(topk, visible blocks) ids of a row count");
  visit("--lse-temperature-scale", &O::lse_temperature_scale, "MSA: asks for lse_t");
  visit("--packed", &O::packed, "QSA: packed rows with qo_indptr, or the fixed layout");
  visit("--group-size", &O::group_size, "QSA: rows per group");
  visit("--per-head-patterns", &O::per_head_patterns, "QSA: a selection per KV head");
  visit("--gate", &O::gate, "QSA: with output_gate");
  visit("--positions-i32", &O::positions_i32, "QSA: query_positions as i32");
  visit("--max-seq-len-kv", &O::max_seq_len_kv, "QSA: planned KV length (default max_pages * page_size)");
  visit("--softmax-scale", &O::softmax_scale, "Softmax scale (default head_dim^-0.5)");
  visit("--k-scale", &O::k_scale, "MSA: k_global_scale");
  visit("--v-scale", &O::v_scale, "v_global_scale, v_scale");
  visit("--scale-tensors", &O::scale_tensors, "Scales as one-element tensors");
  visit("--query-amplitude", &O::query_amplitude, "Factor on the queries");
  visit("--replacement", &O::replacement,
        "Probability that a selected block changes from row to row (default .125, .05)");
  visit("--hostile", &O::hostile, "Probability that an entry of an index tensor is garbage");
  visit("--seed", &O::seed, "Seed");
}

/// Names of the option values: "msa_prefill", "bf16", "hnd", ... Throw ArgumentError for others.
Operation operation_from_name(std::string_view name);
DType dtype_from_name(std::string_view name);
KvLayout kv_layout_from_name(std::string_view name);

}  // namespace kvsieve::io
