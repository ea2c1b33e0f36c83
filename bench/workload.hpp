// SPDX-License-Identifier: Apache-2.0
//
// Calls at the shapes of the models, with selections that are local in time and page tables that are random
// permutations.
#pragma once

#include <cstdint>
#include <string>

#include "io/generate_options.hpp"

namespace kvsieve::bench {

struct Workload {
  std::string name;  ///< "MSA prefill bf16"
  io::GenerateOptions options;
};

/// MiniMax-M3: 64 query heads, 4 KV heads, D 128, 16 of the blocks of 128 keys, one block a page.
/// One request whose last `rows` tokens of `kv_length` are new.
Workload msa_prefill(std::int64_t rows, std::int64_t kv_length, DType kv_dtype);
/// `requests` requests of one new token each.
Workload msa_decode(std::int64_t requests, std::int64_t kv_length, DType kv_dtype);

/// Qwen3.8-Flash-Next: 12 query heads to a KV head, D 256, 512 of the blocks of 4 keys, pages of 64. The model has two
/// KV heads; two-way tensor parallelism leaves one on each device.
Workload qsa_prefill(std::int64_t rows, std::int64_t kv_length, DType kv_dtype, std::int64_t kv_heads = 1);
Workload qsa_decode(std::int64_t requests, std::int64_t kv_length, DType kv_dtype, std::int64_t kv_heads = 1);

/// A few rows over a short cache: shows that everything works, and measures nothing.
void make_tiny(Workload& workload);

/// "1 x 512, KV 16384, 64/4, D 128, 16 x 128": requests x rows, KV length, heads, head dim, blocks x their size.
std::string shape_text(const Workload& workload);

}  // namespace kvsieve::bench
