// SPDX-License-Identifier: Apache-2.0
//
// What a call means once MSA and QSA have become the same computation. The front doors in src/api/ lower their
// arguments to an AttentionProblem; route, attend and combine see nothing else. Plain data: kernels take it by value.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve {

/// A scalar by value, or where the call finds it when it executes (memory of the call's device).
struct ScalarSource {
  const float* address = nullptr;
  float value = 1.0f;
  KVSIEVE_HOST_DEVICE float get() const noexcept { return address != nullptr ? *address : value; }
};

/// K or V as pages. A flat cache is one page of total_k tokens. Strides in elements.
struct KvCache {
  const void* data = nullptr;
  std::int64_t stride_page = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_token = 0;
};

/// [row, head, (D)] view of q, out, gate or lse. Strides in elements; the last dimension of q, out, gate is contiguous.
struct RowHeads {
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t stride_row = 0;
  std::int64_t stride_head = 0;
  KVSIEVE_HOST_DEVICE bool defined() const noexcept { return data != nullptr; }
};

/// How the request and the position of a row are found.
enum class RowRule : std::uint8_t {
  cu_seqlens,        ///< MSA prefill: request b owns rows row_starts[b] .. row_starts[b+1]
  rows_per_request,  ///< MSA decode: request r / rows_per_request
  per_row,           ///< QSA: token_to_request[r] and query_positions[r]
};

struct AttentionProblem {
  // Shapes.
  std::int64_t total_q = 0;
  std::int64_t num_requests = 0;
  std::int64_t num_qo_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t block_size = 0;  ///< keys per selected block, a power of two
  std::int64_t topk = 0;

  // Tensors.
  RowHeads q, out, gate, lse, lse_t;  ///< gate, lse, lse_t may be undefined; lse and lse_t are f32 [row, head]
  DType kv_dtype = DType::none;
  KvCache k, v;

  // Where the keys are. Token j of request b: paged, page page_table[b, j / page_size], slot j % page_size; flat
  // (kv_starts given), page 0, slot kv_starts[b] + j.
  bool paged = false;
  std::int64_t num_pages = 0;  ///< physical pages; 1 for a flat cache
  std::int64_t page_size = 0;  ///< tokens per page; total_k for a flat cache
  const std::int32_t* page_table = nullptr;
  std::int64_t page_table_stride = 0;
  std::int64_t max_pages = 0;                ///< columns of page_table
  const std::int32_t* kv_starts = nullptr;   ///< flat: cu_seqlens_k, [num_requests + 1]
  const std::int32_t* kv_lengths = nullptr;  ///< paged MSA: seqused_k, [num_requests]
  std::int64_t max_kv_length = 0;            ///< QSA: positions at or past it are out of range

  // Which request and position a row has.
  RowRule row_rule = RowRule::per_row;
  const std::int32_t* row_starts = nullptr;  ///< cu_seqlens_q, [num_requests + 1]
  std::int64_t rows_per_request = 0;
  const std::int32_t* q_offset = nullptr;  ///< optional, [num_requests]
  const std::int32_t* token_to_request = nullptr;
  const std::int32_t* positions32 = nullptr;  ///< one of the two for RowRule::per_row
  const std::int64_t* positions64 = nullptr;
  const std::int32_t* group_bounds = nullptr;  ///< packed QSA: qo_indptr, [num_groups + 1]; null otherwise
  std::int64_t num_groups = 0;
  std::int64_t max_group_rows = 1;  ///< rows that the caller groups (G); a hint for tiling

  // The selection: id i of row r for KV head h is ids[r * stride_row + h * stride_head + i].
  const std::int32_t* ids = nullptr;
  std::int64_t ids_stride_row = 0;
  std::int64_t ids_stride_head = 0;  ///< 0: all KV heads read the same ids, so that their routes are the same
  bool shared_selection = false;     ///< the call has one list of ids a row (QSA); check_indices counts it once
  bool causal = true;
  bool valid_prefix = false;  ///< only the first min(topk, visible or completed blocks) ids count
  bool causal_tail = false;   ///< QSA: only completed blocks are selectable; the incomplete last one always is attended

  // Scalars.
  ScalarSource softmax_scale;
  ScalarSource k_scale;  ///< multiplies the logits, with softmax_scale
  ScalarSource v_scale;  ///< multiplies the output
  float lse_temperature_scale = 1.0f;

  KVSIEVE_HOST_DEVICE std::int64_t group() const noexcept { return num_kv_heads > 0 ? num_qo_heads / num_kv_heads : 0; }
};

}  // namespace kvsieve
