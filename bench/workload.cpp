// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvsieve::bench {
namespace {

constexpr std::int64_t qsa_heads_per_kv_head = 12;
/// Rows of a QSA group: 8 x 12 (row, head) pairs share a tile of 128.
constexpr std::int64_t qsa_group_size = 8;
constexpr std::uint64_t seed = 20;

Workload make(io::Operation operation, const char* kind, std::int64_t requests, std::int64_t rows,
              std::int64_t kv_length, DType kv_dtype) {
  Workload workload;
  workload.name = fmt::format("{} {}", kind, kv_dtype == DType::f8_e4m3 ? "FP8 KV" : dtype_name(kv_dtype));
  io::GenerateOptions& options = workload.options;
  options.operation = operation;
  options.batch_size = requests;
  options.query_lengths = {rows};
  options.kv_lengths = {kv_length};
  options.kv_dtype = kv_dtype;
  options.seed = seed;
  return workload;
}

}  // namespace

Workload msa_prefill(std::int64_t rows, std::int64_t kv_length, DType kv_dtype) {
  return make(io::Operation::msa_prefill, "MSA prefill", 1, rows, kv_length, kv_dtype);
}

Workload msa_decode(std::int64_t requests, std::int64_t kv_length, DType kv_dtype) {
  return make(io::Operation::msa_decode, "MSA decode", requests, 1, kv_length, kv_dtype);
}

Workload qsa_prefill(std::int64_t rows, std::int64_t kv_length, DType kv_dtype, std::int64_t kv_heads) {
  Workload workload = make(io::Operation::qsa, "QSA prefill", 1, rows, kv_length, kv_dtype);
  workload.options.num_kv_heads = kv_heads;
  workload.options.num_qo_heads = kv_heads * qsa_heads_per_kv_head;
  workload.options.group_size = qsa_group_size;
  return workload;
}

Workload qsa_decode(std::int64_t requests, std::int64_t kv_length, DType kv_dtype, std::int64_t kv_heads) {
  Workload workload = make(io::Operation::qsa, "QSA decode", requests, 1, kv_length, kv_dtype);
  workload.options.num_kv_heads = kv_heads;
  workload.options.num_qo_heads = kv_heads * qsa_heads_per_kv_head;
  workload.options.packed = false;
  return workload;
}

void make_tiny(Workload& workload) {
  io::GenerateOptions& options = workload.options;
  options.batch_size = std::min<std::int64_t>(options.batch_size, 2);
  for (std::int64_t& rows : options.query_lengths) rows = std::min<std::int64_t>(rows, 5);
  for (std::int64_t& length : options.kv_lengths) length = std::min<std::int64_t>(length, 330);
}

std::string shape_text(const Workload& workload) {
  const io::GenerateOptions options = io::resolved(workload.options);
  return fmt::format("{} x {}, KV {}, {}/{}, D {}, {} x {}", options.batch_size, options.query_lengths.front(),
                     options.kv_lengths.front(), options.num_qo_heads, options.num_kv_heads, options.head_dim,
                     options.topk, options.block_size);
}

}  // namespace kvsieve::bench
