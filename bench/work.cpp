// SPDX-License-Identifier: Apache-2.0
#include "bench/work.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvsieve::bench {
namespace {

const std::int32_t* ints(const Tensor& tensor) { return static_cast<const std::int32_t*>(tensor.data); }

/// Keys that the rows of one request attend to, and distinct ones among them.
class KeyCounter {
 public:
  /// The first `tokens` tokens of a block, for one row.
  void attend(std::int64_t block, std::int64_t tokens) {
    if (block >= static_cast<std::int64_t>(extent_.size())) extent_.resize(static_cast<std::size_t>(block) + 1, 0);
    std::int64_t& extent = extent_[static_cast<std::size_t>(block)];
    extent = std::max(extent, tokens);
    attended_ += static_cast<double>(tokens);
  }
  void next_request() {
    distinct_ += static_cast<double>(std::accumulate(extent_.begin(), extent_.end(), std::int64_t{0}));
    extent_.clear();
  }
  double attended() const { return attended_; }
  double distinct() const { return distinct_; }

 private:
  std::vector<std::int64_t> extent_;  ///< by block: tokens that some row reaches
  double attended_ = 0;
  double distinct_ = 0;
};

std::int64_t msa_length(const MsaArguments& a, std::int64_t request) {
  if (a.seqused_k.defined()) return ints(a.seqused_k)[request];
  return std::int64_t{ints(a.cu_seqlens_k)[request + 1]} - ints(a.cu_seqlens_k)[request];
}

/// Keys of one KV head's lists.
void count_msa_list(const io::Case& test_case, std::int64_t head, KeyCounter& keys) {
  const MsaArguments& a = test_case.msa;
  const std::int64_t topk = a.q2k_indices.shape[2];
  const std::int64_t requests = test_case.decode() ? a.q2k_indices.shape[1] / a.seqlen_q : a.cu_seqlens_q.shape[0] - 1;
  for (std::int64_t b = 0; b < requests; ++b) {
    const std::int64_t begin = test_case.decode() ? b * a.seqlen_q : ints(a.cu_seqlens_q)[b];
    const std::int64_t end = test_case.decode() ? begin + a.seqlen_q : ints(a.cu_seqlens_q)[b + 1];
    const std::int64_t length = msa_length(a, b);
    const std::int64_t first = a.q_offset.defined() ? ints(a.q_offset)[b] : length - (end - begin);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t limit = a.causal ? std::min(first + row - begin, length - 1) : length - 1;
      const std::int32_t* const ids =
          ints(a.q2k_indices) + head * a.q2k_indices.stride[0] + row * a.q2k_indices.stride[1];
      for (std::int64_t i = 0; i < topk; ++i) {
        const std::int64_t start = ids[i] * a.block_size;
        if (ids[i] >= 0 && start <= limit) keys.attend(ids[i], std::min(a.block_size, limit + 1 - start));
      }
    }
    keys.next_request();
  }
}

std::int64_t position(const Tensor& positions, std::int64_t row) {
  return positions.dtype == DType::i32 ? ints(positions)[row] : static_cast<const std::int64_t*>(positions.data)[row];
}

/// Keys of one list per row; `list` is 0 when all KV heads share it.
void count_qsa_list(const io::Case& test_case, std::int64_t list, KeyCounter& keys) {
  const QsaArguments& a = test_case.qsa;
  const QsaConfig& c = test_case.qsa_config;
  const std::int64_t list_stride = c.share_pattern_across_kv_heads ? 0 : a.indexer_block_ids.stride[1];
  const std::int64_t rows = a.token_to_request.shape[0];
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t tokens = position(a.query_positions, row) + 1;
    const std::int64_t done = tokens / c.kv_block_size;
    const std::int32_t* const ids =
        ints(a.indexer_block_ids) + row * a.indexer_block_ids.stride[0] + list * list_stride;
    for (std::int64_t i = 0; i < std::min(c.block_topk, done); ++i) keys.attend(ids[i], c.kv_block_size);
    if (tokens % c.kv_block_size != 0) keys.attend(done, tokens % c.kv_block_size);
    const bool last = row + 1 == rows || ints(a.token_to_request)[row + 1] != ints(a.token_to_request)[row];
    if (last) keys.next_request();
  }
}

}  // namespace

Work count_work(const io::Case& test_case) {
  const Tensor& q = test_case.q();
  const Tensor& k = test_case.k();
  const std::int64_t head_dim = q.shape[q.rank - 1];
  const std::int64_t kv_heads = k.shape[1];
  const bool shared = !test_case.is_msa() && test_case.qsa_config.share_pattern_across_kv_heads;
  const std::int64_t lists = shared ? 1 : kv_heads;

  KeyCounter keys;
  for (std::int64_t list = 0; list < lists; ++list) {
    if (test_case.is_msa()) {
      count_msa_list(test_case, list, keys);
    } else {
      count_qsa_list(test_case, list, keys);
    }
  }
  const double heads_of_a_list = static_cast<double>(q.shape[q.rank - 2]) / static_cast<double>(lists);
  const double kv_heads_of_a_list = static_cast<double>(kv_heads) / static_cast<double>(lists);
  const auto row_bytes = static_cast<double>(dtype_size(q.dtype) + dtype_size(test_case.out_dtype()));
  const auto token_bytes = 2.0 * static_cast<double>(head_dim) * static_cast<double>(dtype_size(k.dtype));
  return {4.0 * static_cast<double>(head_dim) * heads_of_a_list * keys.attended(),
          keys.distinct() * kv_heads_of_a_list * token_bytes + static_cast<double>(q.numel()) * row_bytes};
}

}  // namespace kvsieve::bench
