// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kvsieve/export.hpp"
#include "kvsieve/options.hpp"
#include "kvsieve/tensor.hpp"

namespace kvsieve {

/// Arguments of MSA attention (MiniMax-M3): every query token selects `topk` blocks of `block_size` keys per KV head.
///
/// Symbols: B requests, total_q query rows over all requests, Hq query heads, Hkv KV heads (Hq a multiple of Hkv, at
/// most 16 times), D head dim (64, 128 or 256). All tensors on one device.
///
/// Row r of request b at position p attends to key j of that request if j < len_k(b), and (not causal or j <= p), and
/// block j / block_size is among the row's selected ids for the KV head. With s_j = softmax_scale * k_global_scale *
/// dot(q_r, k_j) over those keys,
///
///     lse[r, h] = log(sum_j exp(s_j)),   out[r, h] = v_global_scale * sum_j exp(s_j - lse) * v_j.
///
/// A row with no key gives out = 0, lse = -infinity. Repeated ids count once.
struct MsaArguments {
  /// [total_q, Hq, D] bf16 or f16; last dimension contiguous, other strides free.
  Tensor q;
  /// Keys. Flat [total_k, Hkv, D], or paged [num_pages, Hkv, page_size, D] with page_size a multiple of block_size.
  /// q's dtype or f8_e4m3. Last dimension contiguous, other strides free (NHD or HND caches, K and V as halves of one
  /// packed cache).
  Tensor k;
  /// Values; shape and dtype of k, strides of its own.
  Tensor v;
  /// [Hkv, total_q, topk] i32, last dimension contiguous: block ids of each row. -1 and every other id that is out of
  /// range is skipped wherever it stands.
  Tensor q2k_indices;
  /// [B+1] i32, contiguous; prefill only. Request b owns rows cu_seqlens_q[b] .. cu_seqlens_q[b+1]. A row that no
  /// request owns is written as a row with no key.
  Tensor cu_seqlens_q;
  /// [B+1] i32, contiguous; flat layout only. Request b owns tokens cu_seqlens_k[b] .. cu_seqlens_k[b+1] of k and v. A
  /// range that is not inside [0, total_k] makes the request empty.
  Tensor cu_seqlens_k;
  /// [B, max_pages] i32, last dimension contiguous; paged layout only. Token j of request b is in page
  /// page_table[b, j / page_size].
  Tensor page_table;
  /// [B] i32, contiguous; paged layout only: KV length of each request, clamped to [0, max_pages * page_size].
  Tensor seqused_k;
  /// [B] i32, contiguous, optional: row t of request b has position p = q_offset[b] + t. Default len_k(b) - len_q(b).
  Tensor q_offset;
  /// Decode only: query rows per request; total_q = B * seqlen_q. Ignored by msa_sparse_attention.
  std::int64_t seqlen_q = 1;

  bool causal = true;
  /// Default D^-0.5.
  std::optional<float> softmax_scale{};
  /// Dequantisation of K: multiplies the logits.
  Scalar k_global_scale = 1.0f;
  /// Dequantisation of V: multiplies the output.
  Scalar v_global_scale = 1.0f;
  /// True: of each row of q2k_indices only the first min(topk, number of visible blocks) ids count and the rest is
  /// garbage, where a block is visible if it holds a key j < len_k(b) with (not causal or j <= p).
  bool valid_prefix = false;
  /// Keys per block: a power of two from 4 to 128; MiniMax-M3 has 128.
  std::int64_t block_size = 128;

  /// [total_q, Hq, D], q's dtype; last dimension contiguous. Every row is written.
  Tensor out;
  /// [total_q, Hq] f32, optional: natural-log log-sum-exp of the scaled logits.
  Tensor lse;
  /// [total_q, Hq] f32, optional: log(sum_j exp(lse_temperature_scale * s_j)) over the same keys.
  Tensor lse_t;
  /// Finite and greater than 0.
  float lse_temperature_scale = 1.0f;
};

/// Prefill and chunked prefill: requests with different numbers of query rows (cu_seqlens_q is required).
/// Throws ArgumentError, UnsupportedError; IndexError with CallOptions::check_indices.
KVSIEVE_API void msa_sparse_attention(const MsaArguments& arguments, const CallOptions& options = {});

/// Decode: every request has `seqlen_q` query rows (cu_seqlens_q must not be given). Padded requests, with length 0
/// and rows at negative positions, are legal.
/// Throws ArgumentError, UnsupportedError; IndexError with CallOptions::check_indices.
KVSIEVE_API void msa_sparse_decode_attention(const MsaArguments& arguments, const CallOptions& options = {});

/// What the workspace of an MSA call depends on. Capacities: a call needs no more workspace than a larger one.
struct MsaConfig {
  Device device{};
  std::int64_t total_q = 0;
  std::int64_t batch_size = 0;
  std::int64_t num_qo_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 128;
  std::int64_t topk = 16;
  std::int64_t block_size = 128;
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;
  /// As CallOptions::num_threads.
  int num_threads = 0;
};

/// Bytes of workspace that an MSA call of this configuration needs, from shapes alone.
/// Throws ArgumentError for a configuration that no call could have.
KVSIEVE_API std::size_t workspace_bytes(const MsaConfig& config);
/// The configuration of a call.
KVSIEVE_API MsaConfig msa_config(const MsaArguments& arguments, const CallOptions& options = {});

}  // namespace kvsieve
