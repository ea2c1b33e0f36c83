// SPDX-License-Identifier: Apache-2.0
#include "bench/host_excerpt.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "reference/access.hpp"

namespace kvsieve::bench {
namespace {

using reference::integer_at;

/// The request that a row of an MSA call belongs to.
std::int64_t msa_request(const io::Case& test_case, std::int64_t row) {
  const MsaArguments& a = test_case.msa;
  if (test_case.decode()) return row / a.seqlen_q;
  std::int64_t request = 0;
  while (integer_at(a.cu_seqlens_q, request + 1) <= row) ++request;
  return request;
}

/// The pages that rows reach, in a page table that counts them from 0.
class PageSet {
 public:
  explicit PageSet(const Tensor& table)
      : source_(table), excerpt_(io::make_tensor(DType::i32, std::span(table.shape).first(2))) {}

  void add(std::int64_t request, std::int64_t column) {
    if (column < 0 || column >= source_.shape[1]) return;
    auto* const entries = static_cast<std::int32_t*>(excerpt_.view.data);
    std::int32_t& entry = entries[request * excerpt_.view.stride[0] + column];
    if (entry >= 0) return;  // fresh memory is -1
    entry = static_cast<std::int32_t>(pages_.size());
    pages_.push_back(integer_at(source_, request, column));
  }
  const io::OwnedTensor& table() const { return excerpt_; }

  /// The pages of a cache.
  io::OwnedTensor copy_of(const Tensor& cache, const CopyToHost& copy) const {
    std::array<std::int64_t, 4> shape = {cache.shape[0], cache.shape[1], cache.shape[2], cache.shape[3]};
    shape[0] = static_cast<std::int64_t>(pages_.size());
    io::OwnedTensor excerpt = io::make_tensor(cache.dtype, shape);
    const std::size_t page_bytes = static_cast<std::size_t>(cache.stride[0]) * dtype_size(cache.dtype);
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const auto* const from =
          static_cast<const std::byte*>(cache.data) + static_cast<std::size_t>(pages_[i]) * page_bytes;
      copy(excerpt.memory.get() + i * page_bytes, from, page_bytes);
    }
    return excerpt;
  }

 private:
  Tensor source_;
  io::OwnedTensor excerpt_;
  std::vector<std::int64_t> pages_;
};

void add_msa_row(const io::Case& test_case, std::int64_t row, PageSet& pages) {
  const MsaArguments& a = test_case.msa;
  const std::int64_t request = msa_request(test_case, row);
  for (std::int64_t head = 0; head < a.q2k_indices.shape[0]; ++head) {
    for (std::int64_t i = 0; i < a.q2k_indices.shape[2]; ++i) {
      const std::int64_t block = integer_at(a.q2k_indices, head, row, i);
      if (block >= 0) pages.add(request, block * a.block_size / a.k.shape[2]);
    }
  }
}

void add_qsa_row(const io::Case& test_case, std::int64_t row, PageSet& pages) {
  const QsaArguments& a = test_case.qsa;
  const QsaConfig& c = test_case.qsa_config;
  const std::int64_t request = integer_at(a.token_to_request, row), position = integer_at(a.query_positions, row);
  const std::int64_t lists = c.share_pattern_across_kv_heads ? 1 : c.num_kv_heads;
  const std::int64_t ids = std::min(c.block_topk, (position + 1) / c.kv_block_size);
  for (std::int64_t list = 0; list < lists; ++list) {
    for (std::int64_t i = 0; i < ids; ++i) {
      const std::int64_t block = c.share_pattern_across_kv_heads ? integer_at(a.indexer_block_ids, row, i)
                                                                 : integer_at(a.indexer_block_ids, row, list, i);
      pages.add(request, block * c.kv_block_size / c.page_size);
    }
  }
  pages.add(request, position / c.page_size);  // the tail
}

}  // namespace

io::Case host_excerpt(const io::Case& test_case, const std::vector<std::int64_t>& rows, const CopyToHost& copy) {
  PageSet pages(test_case.is_msa() ? test_case.msa.page_table : test_case.qsa.block_table);
  for (const std::int64_t row : rows) {
    if (test_case.is_msa()) {
      add_msa_row(test_case, row, pages);
    } else {
      add_qsa_row(test_case, row, pages);
    }
  }
  io::Case excerpt = test_case;
  const Tensor& q = test_case.q();
  const io::OwnedTensor host_q = io::make_tensor(q.dtype, std::span(q.shape).first(static_cast<std::size_t>(q.rank)));
  copy(host_q.memory.get(), q.data, host_q.bytes);
  const Tensor k = excerpt.keep(pages.copy_of(test_case.k(), copy)),
               v = excerpt.keep(pages.copy_of(test_case.v(), copy));
  const Tensor table = excerpt.keep(pages.table());
  if (test_case.is_msa()) {
    excerpt.msa.q = excerpt.keep(host_q);
    excerpt.msa.k = k;
    excerpt.msa.v = v;
    excerpt.msa.page_table = table;
  } else {
    excerpt.qsa.q = excerpt.keep(host_q);
    excerpt.qsa.k_cache = k;
    excerpt.qsa.v_cache = v;
    excerpt.qsa.block_table = table;
  }
  return excerpt;
}

}  // namespace kvsieve::bench
