// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/msa.hpp"

#include <cmath>

#include "api/dispatch.hpp"
#include "api/validate.hpp"
#include "core/problem.hpp"
#include "reference/reference.hpp"

namespace kvsieve {
namespace {

Shape shape_of(const MsaConfig& c) {
  Shape shape;
  shape.total_q = c.total_q;
  shape.num_qo_heads = c.num_qo_heads;
  shape.num_kv_heads = c.num_kv_heads;
  shape.head_dim = c.head_dim;
  shape.topk = c.topk;
  shape.block_size = c.block_size;
  shape.num_threads = c.num_threads;
  return shape;
}

KvCache cache_view(const Tensor& t) {
  if (t.rank == 3) return {t.data, 0, t.stride[1], t.stride[0]};
  return {t.data, t.stride[0], t.stride[1], t.stride[2]};
}

const std::int32_t* ints(const Tensor& t) { return t.defined() ? static_cast<const std::int32_t*>(t.data) : nullptr; }

AttentionProblem lower(const MsaArguments& a, bool decode) {
  AttentionProblem p;
  p.total_q = a.q.shape[0];
  p.num_qo_heads = a.q.shape[1];
  p.head_dim = a.q.shape[2];
  p.num_kv_heads = a.k.shape[1];
  p.block_size = a.block_size;
  p.topk = a.q2k_indices.shape[2];
  p.q = row_heads(a.q, a.q.stride[0], 1);
  p.out = row_heads(a.out, a.out.stride[0], 1);
  p.lse = row_heads(a.lse, a.lse.stride[0], 1);
  p.lse_t = row_heads(a.lse_t, a.lse_t.stride[0], 1);
  p.kv_dtype = a.k.dtype;
  p.k = cache_view(a.k);
  p.v = cache_view(a.v);
  if (a.k.rank == 3) {  // a flat cache is one page
    p.num_pages = 1;
    p.page_size = a.k.shape[0];
    p.kv_starts = ints(a.cu_seqlens_k);
    p.num_requests = a.cu_seqlens_k.shape[0] - 1;
  } else {
    p.paged = true;
    p.num_pages = a.k.shape[0];
    p.page_size = a.k.shape[2];
    p.page_table = ints(a.page_table);
    p.page_table_stride = a.page_table.stride[0];
    p.max_pages = a.page_table.shape[1];
    p.kv_lengths = ints(a.seqused_k);
    p.num_requests = a.page_table.shape[0];
  }
  p.row_rule = decode ? RowRule::rows_per_request : RowRule::cu_seqlens;
  p.row_starts = ints(a.cu_seqlens_q);
  p.rows_per_request = decode ? a.seqlen_q : 0;
  p.q_offset = ints(a.q_offset);
  p.ids = ints(a.q2k_indices);
  p.ids_stride_head = a.q2k_indices.stride[0];
  p.ids_stride_row = a.q2k_indices.stride[1];
  p.causal = a.causal;
  p.valid_prefix = a.valid_prefix;
  p.softmax_scale.value = a.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
  p.k_scale = scalar_source(a.k_global_scale);
  p.v_scale = scalar_source(a.v_global_scale);
  p.lse_temperature_scale = a.lse_temperature_scale;
  return p;
}

void attend(const MsaArguments& arguments, const CallOptions& options, bool decode) {
  const Path path = choose_path(arguments.q.device, options);
  if (!options.unchecked) {
    const std::size_t workspace =
        path == Path::reference
            ? 0
            : attention_workspace_bytes(arguments.q.device, shape_of(msa_config(arguments, options)));
    validate_msa(arguments, options, decode, workspace);
  }
  if (path == Path::reference) {
    reference::msa(arguments, decode);
    if (options.check_indices) report_bad_indices(reference::msa_bad_indices(arguments, decode));
    return;
  }
  run_attention(lower(arguments, decode), arguments.q.device, path, options);
}

}  // namespace

Path msa_path(const MsaArguments& arguments, const CallOptions& options, bool decode) {
  const Device device = arguments.q.device;
  const Path path = choose_path(device, options);
  return path == Path::reference ? path : resolve_path(lower(arguments, decode), device, path);
}

void msa_sparse_attention(const MsaArguments& arguments, const CallOptions& options) {
  attend(arguments, options, false);
}

void msa_sparse_decode_attention(const MsaArguments& arguments, const CallOptions& options) {
  attend(arguments, options, true);
}

std::size_t workspace_bytes(const MsaConfig& config) {
  validate_msa_config(config);
  return attention_workspace_bytes(config.device, shape_of(config));
}

MsaConfig msa_config(const MsaArguments& arguments, const CallOptions& options) {
  MsaConfig config;
  config.device = arguments.q.device;
  config.total_q = arguments.q.shape[0];
  config.batch_size =
      arguments.page_table.defined() ? arguments.page_table.shape[0] : arguments.cu_seqlens_k.shape[0] - 1;
  config.num_qo_heads = arguments.q.shape[1];
  config.num_kv_heads = arguments.k.shape[1];
  config.head_dim = arguments.q.shape[2];
  config.topk = arguments.q2k_indices.shape[2];
  config.block_size = arguments.block_size;
  config.q_dtype = arguments.q.dtype;
  config.kv_dtype = arguments.k.dtype;
  config.num_threads = options.num_threads;
  return config;
}

}  // namespace kvsieve
