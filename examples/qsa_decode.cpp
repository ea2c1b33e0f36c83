// SPDX-License-Identifier: Apache-2.0
//
// One decode step of QSA attention (Qwen3.8-Flash-Next): blocks are only 4 keys long, so a token selects 512 of them,
// and always attends to the incomplete block that it stands in. A plan fixes the capacity once; run() takes each step's
// data.
#include <cmath>
#include <cstdio>
#include <kvsieve/kvsieve.hpp>

#include "paged_cache.hpp"

using kvsieve::DType;
using kvsieve::Tensor;

namespace {

constexpr std::int64_t requests = 2, qo_heads = 24, kv_heads = 2, head_dim = 256, block = 4, topk = 512;
constexpr std::int64_t page_size = 64, max_pages = 80;
const std::vector<std::int32_t> positions = {4998, 1000};  // of each request's new token, counted from 0

std::int64_t completed_blocks(std::int64_t position) { return (position + 1) / block; }

/// Block ids [requests, topk], shared by all KV heads. The second request has fewer completed blocks than 512: it
/// selects all of them, and what stands behind them is never looked at.
std::vector<std::int32_t> select_blocks(std::mt19937& generator) {
  std::vector<std::int32_t> ids;
  for (const std::int32_t position : positions) {
    auto row = random_ids(topk, completed_blocks(position), generator);
    row.resize(topk, 0x7FFFFFFF);
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return ids;
}

/// The tokens that a request's row attends to: its selected blocks, then the tail.
std::vector<std::int64_t> attended_tokens(const std::vector<std::int32_t>& ids, std::int64_t request) {
  const std::int64_t position = positions[static_cast<std::size_t>(request)];
  const std::int64_t done = completed_blocks(position);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < std::min(topk, done); ++i) {
    const std::int64_t first = block * ids[static_cast<std::size_t>(request * topk + i)];
    for (std::int64_t token = first; token < first + block; ++token) tokens.push_back(token);
  }
  for (std::int64_t token = done * block; token <= position; ++token) tokens.push_back(token);
  return tokens;
}

}  // namespace

int main() try {
  std::mt19937 generator(2);
  const PagedCache cache(requests, max_pages, kv_heads, page_size, head_dim, generator);
  const std::vector<Bf16> q = random_bf16(requests * qo_heads * head_dim, generator);
  const std::vector<std::int32_t> ids = select_blocks(generator);
  const std::vector<std::int32_t> token_to_request = {0, 1};
  std::vector<Bf16> out(q.size());
  std::vector<float> lse(static_cast<std::size_t>(requests * qo_heads));

  kvsieve::QsaConfig config;
  config.batch_size = requests;
  config.seq_len_q = 1;
  config.num_qo_heads = qo_heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.kv_block_size = block;
  config.page_size = page_size;
  config.block_topk = topk;
  config.max_seq_len_kv = max_pages * page_size;
  const kvsieve::QsaPlan plan(config);
  std::vector<std::byte> scratch(plan.workspace_bytes());

  kvsieve::QsaArguments arguments;
  arguments.q = Tensor(q.data(), DType::bf16, {requests, 1, 1, qo_heads, head_dim});
  arguments.k_cache = Tensor(cache.k.data(), DType::bf16, {cache.num_pages(), kv_heads, page_size, head_dim});
  arguments.v_cache = Tensor(cache.v.data(), DType::bf16, {cache.num_pages(), kv_heads, page_size, head_dim});
  arguments.block_table = Tensor(cache.page_table.data(), DType::i32, {requests, max_pages});
  arguments.indexer_block_ids = Tensor(ids.data(), DType::i32, {requests, topk});
  arguments.token_to_request = Tensor(token_to_request.data(), DType::i32, {requests});
  arguments.query_positions = Tensor(positions.data(), DType::i32, {requests});
  arguments.out = Tensor(out.data(), DType::bf16, {requests, 1, 1, qo_heads, head_dim});
  arguments.lse = Tensor(lse.data(), DType::f32, {requests, 1, 1, qo_heads});
  kvsieve::CallOptions options;
  options.workspace = {scratch.data(), scratch.size()};
  plan.run(arguments, options);

  double largest = 0.0;
  for (std::int64_t request = 0; request < requests; ++request) {
    const std::vector<std::int64_t> tokens = attended_tokens(ids, request);
    for (std::int64_t head = 0; head < qo_heads; ++head) {
      const std::int64_t row = (request * qo_heads + head) * head_dim;
      const std::vector<double> expected =
          slow_attention(cache, q.data() + row, request, head / (qo_heads / kv_heads), tokens);
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const double got = to_float(out[static_cast<std::size_t>(row + d)]);
        largest = std::fmax(largest, std::fabs(got - expected[static_cast<std::size_t>(d)]));
      }
    }
    std::printf("QSA decode, position %d: %zu keys attended\n", positions[static_cast<std::size_t>(request)],
                tokens.size());
  }
  std::printf("largest error %.1e\n", largest);
  // Outputs are averages over some 1,000 random values and more, so well below 1; bf16 keeps 8 bits of them.
  return largest < 2e-3 ? 0 : 1;
} catch (const kvsieve::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
