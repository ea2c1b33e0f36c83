// SPDX-License-Identifier: Apache-2.0
#include "io/generate_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace kvsieve::io {
namespace {

using Lengths = std::vector<std::int64_t>;
constexpr std::int64_t max_int32 = std::numeric_limits<std::int32_t>::max();

void use_model(std::int64_t& value, bool msa, std::int64_t msa_value, std::int64_t qsa_value) {
  if (value == GenerateOptions::of_the_model) value = msa ? msa_value : qsa_value;
}

void require(bool condition, const char* option, const std::string& got, const char* want) {
  if (!condition) throw ArgumentError(option, got, want);
}

void require_range(std::int64_t value, std::int64_t low, std::int64_t high, const char* option) {
  require(value >= low && value <= high, option, std::to_string(value),
          fmt::format("an integer from {} to {}", low, high).c_str());
}

/// One value per request.
void expand(Lengths& lengths, std::int64_t batch_size, std::int64_t low, const char* option) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  require(count == 1 || count == batch_size, option, fmt::format("{} values", count),
          fmt::format("one, or one for each of the {} requests", batch_size).c_str());
  lengths.resize(static_cast<std::size_t>(batch_size), count == 0 ? 0 : lengths.front());
  for (const std::int64_t length : lengths) require_range(length, low, max_int32, option);
}

void fill_in_model(GenerateOptions& o) {
  const bool msa = o.operation != Operation::qsa;
  use_model(o.num_qo_heads, msa, 64, 12);
  use_model(o.num_kv_heads, msa, 4, 1);
  use_model(o.head_dim, msa, 128, 256);
  use_model(o.block_size, msa, 128, 4);
  use_model(o.topk, msa, 16, 512);
  use_model(o.page_size, msa, 128, 64);
  if (o.replacement < 0) o.replacement = msa ? 0.125 : 0.05;
  if (o.kv_dtype == DType::none) o.kv_dtype = o.q_dtype;
  if (o.out_dtype == DType::none) o.out_dtype = o.q_dtype == DType::f8_e4m3 ? DType::bf16 : o.q_dtype;
  if (!o.kv_layout) o.kv_layout = o.page_size == 0 ? KvLayout::nhd : KvLayout::hnd;
}

void check_shapes(const GenerateOptions& o) {
  require_range(o.num_kv_heads, 1, 1 << 16, "--kv-heads");
  require_range(o.num_qo_heads, 1, 1 << 16, "--heads");
  require(o.num_qo_heads % o.num_kv_heads == 0, "--heads", std::to_string(o.num_qo_heads),
          fmt::format("a multiple of the {} KV heads", o.num_kv_heads).c_str());
  require_range(o.head_dim, 1, 1 << 16, "--head-dim");
  require_range(o.block_size, 1, 1 << 16, "--block-size");
  require_range(o.topk, 0, 1 << 20, "--topk");
  const bool flat = o.page_size == 0 && o.operation != Operation::qsa;
  require(flat || (o.page_size >= 1 && o.page_size <= max_int32 && o.page_size % o.block_size == 0), "--page-size",
          std::to_string(o.page_size), fmt::format("a multiple of the block size {}", o.block_size).c_str());
  require_range(o.spare_pages, 0, 1 << 24, "--spare-pages");
  require_range(o.row_gap, 0, 4096, "--row-gap");
  require_range(o.index_gap, 0, 4096, "--index-gap");
  require_range(o.padding_rows, 0, 1 << 24, "--padding-rows");
  require_range(o.group_size, 1, 1 << 16, "--group-size");
  if (o.max_seq_len_kv) require_range(*o.max_seq_len_kv, 0, std::int64_t{1} << 40, "--max-seq-len-kv");
}

void check_numbers(const GenerateOptions& o) {
  require(o.replacement <= 1, "--replacement", fmt::format("{}", o.replacement), "a probability");
  require(o.hostile >= 0 && o.hostile <= 1, "--hostile", fmt::format("{}", o.hostile), "a probability");
  const auto finite = [](float value, const char* option) {
    require(std::isfinite(value), option, fmt::format("{}", value), "a finite number");
  };
  finite(o.k_scale, "--k-scale");
  finite(o.v_scale, "--v-scale");
  finite(o.query_amplitude, "--query-amplitude");
  finite(o.softmax_scale.value_or(1), "--softmax-scale");
  finite(o.lse_temperature_scale.value_or(1), "--lse-temperature-scale");
}

/// Decode and the fixed QSA layout have the same number of rows for every request, and no others.
void check_even_rows(const GenerateOptions& o) {
  const bool fixed = o.operation == Operation::qsa && !o.packed;
  if (o.operation != Operation::msa_decode && !fixed) return;
  for (const std::int64_t length : o.query_lengths) {
    require(length == o.query_lengths.front(), "--q-len", "different lengths",
            "the same length for all requests of a decode or fixed layout");
    require(!fixed || length % o.group_size == 0, "--q-len", std::to_string(length),
            fmt::format("a multiple of the group size {}", o.group_size).c_str());
  }
  require(o.padding_rows == 0, "--padding-rows", std::to_string(o.padding_rows), "0 for a decode or fixed layout");
}

/// The words of a command, option by option, leaving out those at their default.
class CommandWriter {
 public:
  explicit CommandWriter(std::string command) : command_(std::move(command)) {}

  template <class Value>
  void add(const char* name, const Value& value, const Value& standard) {
    if (value != standard) command_ += fmt::format(" {}={}", name, text(value));
  }
  const std::string& command() const { return command_; }

 private:
  static std::string text(bool value) { return value ? "true" : "false"; }
  static std::string text(std::int64_t value) { return std::to_string(value); }
  static std::string text(std::uint64_t value) { return std::to_string(value); }
  static std::string text(double value) { return fmt::format("{}", value); }
  static std::string text(float value) { return fmt::format("{}", value); }
  static std::string text(DType value) { return std::string(dtype_name(value)); }
  static std::string text(KvLayout value) { return std::string(kv_layout_name(value)); }
  static std::string text(const Lengths& values) { return fmt::format("{}", fmt::join(values, ",")); }
  template <class Value>
  static std::string text(const std::optional<Value>& value) {
    return text(*value);
  }

  std::string command_;
};

}  // namespace

GenerateOptions resolved(GenerateOptions o) {
  fill_in_model(o);
  check_shapes(o);
  check_numbers(o);
  require_range(o.batch_size, 0, 1 << 24, "--batch");
  expand(o.query_lengths, o.batch_size, 0, "--q-len");
  expand(o.kv_lengths, o.batch_size, 0, "--kv-len");
  if (!o.q_offsets.empty()) expand(o.q_offsets, o.batch_size, -max_int32, "--q-offset");
  check_even_rows(o);
  const std::int64_t rows = std::accumulate(o.query_lengths.begin(), o.query_lengths.end(), o.padding_rows);
  require(rows <= max_int32, "--q-len", fmt::format("{} rows in all", rows), "fewer than 2^31");
  const std::int64_t tokens = std::accumulate(o.kv_lengths.begin(), o.kv_lengths.end(), o.spare_pages);
  require(o.page_size != 0 || tokens <= max_int32, "--kv-len", fmt::format("{} tokens in all", tokens),
          "fewer than 2^31 in a flat cache");
  return o;
}

std::string generate_command(const GenerateOptions& options) {
  CommandWriter writer(fmt::format("kvsieve generate --op={}", operation_name(options.operation)));
  const GenerateOptions standard;
  for_each_option(
      [&](const char* name, auto member, const char*) { writer.add(name, options.*member, standard.*member); });
  return writer.command();
}

Operation operation_from_name(std::string_view name) {
  for (const Operation operation : {Operation::msa_prefill, Operation::msa_decode, Operation::qsa}) {
    if (operation_name(operation) == name) return operation;
  }
  throw ArgumentError("--op", std::string(name), "msa_prefill, msa_decode or qsa");
}

DType dtype_from_name(std::string_view name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f8_e4m3}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  throw ArgumentError("dtype", std::string(name), "bf16, f16 or f8_e4m3");
}

KvLayout kv_layout_from_name(std::string_view name) {
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd, KvLayout::packed_nhd, KvLayout::packed_hnd}) {
    if (kv_layout_name(layout) == name) return layout;
  }
  throw ArgumentError("--kv-layout", std::string(name), "hnd, nhd, packed_hnd or packed_nhd");
}

}  // namespace kvsieve::io
