// SPDX-License-Identifier: Apache-2.0
//
// One decode step of MSA attention (MiniMax-M3): each of two requests has one new token, which attends to 16 blocks of
// 128 keys that an indexer chose for it. The step is computed twice: in one call, and as an engine does it that keeps
// the KV cache on two devices, where each half of the selection gives a partial state and the two are merged.
#include <cmath>
#include <cstdio>
#include <kvsieve/kvsieve.hpp>

#include "paged_cache.hpp"

using kvsieve::DType;
using kvsieve::Tensor;

namespace {

constexpr std::int64_t requests = 2, qo_heads = 64, kv_heads = 4, head_dim = 128, block = 128, topk = 16;
constexpr std::int64_t max_pages = 40;
const std::vector<std::int32_t> lengths = {5000, 3000};  // keys of each request, the new token's own included

/// Block ids [kv_heads, requests, topk]: the newest block, which a token always selects, and 15 others at random.
std::vector<std::int32_t> select_blocks(std::mt19937& generator) {
  std::vector<std::int32_t> ids;
  for (std::int64_t head = 0; head < kv_heads; ++head) {
    for (const std::int32_t length : lengths) {
      const std::int32_t newest = (length - 1) / static_cast<std::int32_t>(block);
      const auto others = random_ids(topk - 1, newest, generator);
      ids.push_back(newest);
      ids.insert(ids.end(), others.begin(), others.end());
    }
  }
  return ids;
}

/// The call. Tensors are views: they say where memory is and own none of it.
void attend(const PagedCache& cache, const std::vector<Bf16>& q, const std::vector<std::int32_t>& ids, Bf16* out,
            float* lse) {
  kvsieve::MsaArguments arguments;
  arguments.q = Tensor(q.data(), DType::bf16, {requests, qo_heads, head_dim});
  arguments.k = Tensor(cache.k.data(), DType::bf16, {cache.num_pages(), kv_heads, block, head_dim});
  arguments.v = Tensor(cache.v.data(), DType::bf16, {cache.num_pages(), kv_heads, block, head_dim});
  arguments.q2k_indices = Tensor(ids.data(), DType::i32, {kv_heads, requests, topk});
  arguments.page_table = Tensor(cache.page_table.data(), DType::i32, {requests, max_pages});
  arguments.seqused_k = Tensor(lengths.data(), DType::i32, {requests});
  arguments.out = Tensor(out, DType::bf16, {requests, qo_heads, head_dim});
  arguments.lse = Tensor(lse, DType::f32, {requests, qo_heads});

  // A call allocates nothing: the caller owns the scratch memory, and keeps it from step to step.
  std::vector<std::byte> scratch(kvsieve::workspace_bytes(kvsieve::msa_config(arguments)));
  kvsieve::CallOptions options;
  options.workspace = {scratch.data(), scratch.size()};
  kvsieve::msa_sparse_decode_attention(arguments, options);
}

/// Largest difference between `out` and attention written the slow way, over every element.
double largest_error(const PagedCache& cache, const std::vector<Bf16>& q, const std::vector<std::int32_t>& ids,
                     const std::vector<Bf16>& out) {
  double largest = 0.0;
  for (std::int64_t request = 0; request < requests; ++request) {
    for (std::int64_t head = 0; head < qo_heads; ++head) {
      const std::int64_t kv_head = head / (qo_heads / kv_heads);
      std::vector<std::int64_t> tokens;
      for (std::int64_t i = 0; i < topk; ++i) {
        const std::int64_t first = block * ids[static_cast<std::size_t>((kv_head * requests + request) * topk + i)];
        const std::int64_t end = std::min<std::int64_t>(first + block, lengths[static_cast<std::size_t>(request)]);
        for (std::int64_t token = first; token < end; ++token) tokens.push_back(token);
      }
      const std::int64_t row = (request * qo_heads + head) * head_dim;
      const std::vector<double> expected = slow_attention(cache, q.data() + row, request, kv_head, tokens);
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const double got = to_float(out[static_cast<std::size_t>(row + d)]);
        largest = std::fmax(largest, std::fabs(got - expected[static_cast<std::size_t>(d)]));
      }
    }
  }
  return largest;
}

}  // namespace

int main() try {
  std::mt19937 generator(1);
  const PagedCache cache(requests, max_pages, kv_heads, block, head_dim, generator);
  const std::vector<Bf16> q = random_bf16(requests * qo_heads * head_dim, generator);
  const std::vector<std::int32_t> ids = select_blocks(generator);
  const auto elements = static_cast<std::size_t>(requests * qo_heads * head_dim);
  const auto rows = static_cast<std::size_t>(requests * qo_heads);

  std::vector<Bf16> out(elements);
  std::vector<float> lse(rows);
  attend(cache, q, ids, out.data(), lse.data());

  // The same step over two shards. An id of -1 is skipped, so each shard gets the selection with the other's blocks
  // out.
  std::vector<Bf16> shard_outs(2 * elements);
  std::vector<float> shard_lses(2 * rows);
  for (std::size_t shard = 0; shard < 2; ++shard) {
    std::vector<std::int32_t> own = ids;
    for (std::int32_t& id : own) {
      if (static_cast<std::size_t>(id) % 2 != shard) id = -1;
    }
    attend(cache, q, own, shard_outs.data() + shard * elements, shard_lses.data() + shard * rows);
  }
  std::vector<Bf16> merged(elements);
  kvsieve::MergeArguments merge;
  merge.outs = Tensor(shard_outs.data(), DType::bf16, {2, requests, qo_heads, head_dim});
  merge.lses = Tensor(shard_lses.data(), DType::f32, {2, requests, qo_heads});
  merge.out = Tensor(merged.data(), DType::bf16, {requests, qo_heads, head_dim});
  kvsieve::merge_states(merge);

  const double whole_error = largest_error(cache, q, ids, out);
  const double merged_error = largest_error(cache, q, ids, merged);
  std::printf("MSA decode, %d blocks of %d keys a head: largest error %.1e, merged from two shards %.1e\n",
              static_cast<int>(topk), static_cast<int>(block), whole_error, merged_error);
  // Outputs are averages over some 2,000 random values, so well below 1; bf16 keeps 8 bits of them.
  return whole_error < 2e-3 && merged_error < 2e-3 ? 0 : 1;
} catch (const kvsieve::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
