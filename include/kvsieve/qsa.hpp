// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kvsieve/export.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve {

/// Capacity and shape of QSA attention (Qwen3.8-Flash-Next), fixed by a plan. Query rows come in groups: neighbouring
/// rows of one request that are computed together because they select mostly the same blocks.
struct QsaConfig {
  Device device{};
  /// Number of groups: fixed layout B * Nq; packed layout the capacity, length of qo_indptr minus 1.
  std::int64_t batch_size = 0;
  /// Rows per group (G): exactly that in the fixed layout, at most that in the packed layout. G * Hq/Hkv <= 128.
  std::int64_t seq_len_q = 1;
  std::int64_t num_qo_heads = 0;
  std::int64_t num_kv_heads = 0;
  /// 64, 128 or 256.
  std::int64_t head_dim = 256;
  /// Keys per block: 4, 8, 16, 32, 64 or 128.
  std::int64_t kv_block_size = 4;
  /// Tokens per page of the KV cache: a multiple of kv_block_size.
  std::int64_t page_size = 64;
  /// Ids per row of indexer_block_ids.
  std::int64_t block_topk = 512;
  /// Longest KV length that a row may see. A position at or past it is out of range: its row has no key.
  std::int64_t max_seq_len_kv = 0;
  bool use_packed_q = false;
  /// True: one list of ids per row. False: one per row and KV head.
  bool share_pattern_across_kv_heads = true;
  DType q_dtype = DType::bf16;
  /// q_dtype or f8_e4m3; f8_e4m3 when q_dtype is.
  DType kv_dtype = DType::bf16;
  /// q_dtype, or bf16 / f16 when q_dtype is f8_e4m3.
  DType out_dtype = DType::bf16;
  /// As CallOptions::num_threads.
  int num_threads = 0;
};

/// Live data of a QSA call.
///
/// Symbols: total_q query rows, Hq query heads, Hkv KV heads, D head dim, `requests` rows of block_table.
///
/// For a row at position p let done = (p + 1) / kv_block_size (integer division). The first min(block_topk, done) ids
/// of the row are distinct completed blocks in [0, done), in any order; later entries are garbage and are ignored. The
/// row attends to those blocks and to the tail, tokens done * kv_block_size .. p. With s_j = sm_scale * dot(q_r, k_j)
/// over those keys,
///
///     lse[r, h] = log(sum_j exp(s_j)),   out[r, h] = v_scale * sum_j exp(s_j - lse) * v_j,
///
/// and with a gate out = round(out) * sigmoid(gate), where round is the rounding to out_dtype.
struct QsaArguments {
  /// Packed [total_q, Hq, D] or fixed [B, Nq, G, Hq, D]. bf16 or f16 with k_cache, v_cache of the same dtype or
  /// f8_e4m3; or all three f8_e4m3. Last dimension contiguous; the fixed layout's three leading dimensions must
  /// collapse into one (row r = (b * Nq + n) * G + g at a constant stride).
  Tensor q;
  /// [num_pages, Hkv, page_size, D]; last dimension contiguous, other strides free.
  Tensor k_cache;
  /// Shape and dtype of k_cache, strides of its own.
  Tensor v_cache;
  /// [requests, max_pages] i32, last dimension contiguous: token j of request b is in page block_table[b, j/page_size].
  Tensor block_table;
  /// [total_q, block_topk] i32, or [total_q, Hkv, block_topk] when patterns are per KV head; last dimension contiguous.
  Tensor indexer_block_ids;
  /// [total_q] i32, contiguous. A row of a request that is out of range has no key.
  Tensor token_to_request;
  /// [total_q] i32 or i64, contiguous: zero-based position p of each row; negative for a padded row, which has no key.
  Tensor query_positions;
  /// [groups + 1] i32, contiguous; packed layout only. Cuts rows into groups of at most G rows, each within one
  /// request. Rows before qo_indptr[0] and from qo_indptr[groups] on are padding and have no key; the cuts between are
  /// a hint for speed, and no value of them changes a result.
  Tensor qo_indptr;
  /// Default D^-0.5.
  std::optional<Scalar> sm_scale{};
  Scalar v_scale = 1.0f;
  /// Shape of q, out_dtype, optional; the sigmoid is taken in float32.
  Tensor output_gate;
  /// Shape of q, out_dtype; last dimension contiguous. Every row is written.
  Tensor out;
  /// Shape of q without D, f32, optional: natural-log log-sum-exp of the scaled logits.
  Tensor lse;
};

/// A validated configuration. Cheap to copy; holds no memory.
class KVSIEVE_API QsaPlan {
 public:
  /// Throws ArgumentError when the configuration is not one that the contract allows; UnsupportedError when no path
  /// takes calls of the planned capacity on the device, as run() would. What the plan does not hold shows at run()
  /// alone: on CUDA a block_table whose capacity (max_pages * page_size) is too large.
  explicit QsaPlan(const QsaConfig& config);

  const QsaConfig& config() const noexcept { return config_; }
  /// Bytes of workspace that run() needs at most, from the configuration alone.
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  /// Computes live data within the planned capacity: the groups and rows may be fewer, all else is as planned.
  /// Throws ArgumentError, UnsupportedError; IndexError with CallOptions::check_indices.
  void run(const QsaArguments& arguments, const CallOptions& options = {}) const;

 private:
  QsaConfig config_;
  std::size_t workspace_bytes_ = 0;
};

/// Bytes of workspace that a QSA call of this configuration needs at most. Throws ArgumentError as QsaPlan does.
KVSIEVE_API std::size_t workspace_bytes(const QsaConfig& config);

/// The configuration that live data imply, for the eager form. `kv_block_size` is not visible in the shapes;
/// `seq_len_q` is read off a fixed q and is the group size of a packed one. The capacity max_seq_len_kv is
/// max_pages * page_size.
KVSIEVE_API QsaConfig qsa_config(const QsaArguments& arguments, std::int64_t kv_block_size, std::int64_t seq_len_q = 1,
                                 const CallOptions& options = {});

/// Eager form: plan and run in one call.
KVSIEVE_API void qsa_attention(const QsaArguments& arguments, std::int64_t kv_block_size, std::int64_t seq_len_q = 1,
                               const CallOptions& options = {});

/// Proposes the rows per group (G, 1 to 16) for `rows_per_request` neighbouring rows of a request on a device with
/// `num_processors` streaming multiprocessors (CPU: cores): as many as share a tile of 128 (row, head) pairs, but no
/// more than leave every processor a group to work on.
KVSIEVE_API std::int64_t suggest_group_size(std::int64_t batch_size, std::int64_t rows_per_request,
                                            std::int64_t num_qo_heads, std::int64_t num_kv_heads,
                                            std::int64_t num_processors);

}  // namespace kvsieve
