// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/qsa.hpp"

#include <algorithm>
#include <cmath>

#include "api/dispatch.hpp"
#include "api/qsa_call.hpp"
#include "api/validate.hpp"
#include "core/problem.hpp"
#include "reference/reference.hpp"

namespace kvsieve {
namespace {

Shape shape_of(const QsaConfig& c) {
  Shape shape;
  shape.total_q = c.batch_size * c.seq_len_q;
  shape.num_qo_heads = c.num_qo_heads;
  shape.num_kv_heads = c.num_kv_heads;
  shape.head_dim = c.head_dim;
  shape.topk = c.block_topk;
  shape.block_size = c.kv_block_size;
  shape.shared_selection = c.share_pattern_across_kv_heads;
  shape.num_threads = c.num_threads;
  return shape;
}

const std::int32_t* ints(const Tensor& t) { return static_cast<const std::int32_t*>(t.data); }

KvCache cache_view(const Tensor& t) { return {t.data, t.stride[0], t.stride[1], t.stride[2]}; }

/// [row, head] view of a tensor of q's layout. The leading dimensions of the fixed layout collapse into the row, whose
/// stride is that of the innermost one with more than one element.
RowHeads row_view(const Tensor& t, bool packed) {
  if (packed || !t.defined()) return row_heads(t, t.stride[0], 1);
  int dimension = 2;
  while (dimension > 0 && t.shape[static_cast<std::size_t>(dimension)] == 1) --dimension;
  return row_heads(t, t.stride[static_cast<std::size_t>(dimension)], 3);
}

AttentionProblem lower(const QsaConfig& c, const QsaArguments& a) {
  AttentionProblem p;
  p.total_q = a.token_to_request.shape[0];
  p.num_requests = a.block_table.shape[0];
  p.num_qo_heads = c.num_qo_heads;
  p.num_kv_heads = c.num_kv_heads;
  p.head_dim = c.head_dim;
  p.block_size = c.kv_block_size;
  p.topk = c.block_topk;
  p.q = row_view(a.q, c.use_packed_q);
  p.out = row_view(a.out, c.use_packed_q);
  p.gate = row_view(a.output_gate, c.use_packed_q);
  p.lse = row_view(a.lse, c.use_packed_q);
  p.kv_dtype = c.kv_dtype;
  p.k = cache_view(a.k_cache);
  p.v = cache_view(a.v_cache);
  p.paged = true;
  p.num_pages = a.k_cache.shape[0];
  p.page_size = c.page_size;
  p.page_table = ints(a.block_table);
  p.page_table_stride = a.block_table.stride[0];
  p.max_pages = a.block_table.shape[1];
  p.max_kv_length = c.max_seq_len_kv;
  p.row_rule = RowRule::per_row;
  p.token_to_request = ints(a.token_to_request);
  if (a.query_positions.dtype == DType::i64) {
    p.positions64 = static_cast<const std::int64_t*>(a.query_positions.data);
  } else {
    p.positions32 = ints(a.query_positions);
  }
  if (c.use_packed_q) {
    p.group_bounds = ints(a.qo_indptr);
    p.num_groups = a.qo_indptr.shape[0] - 1;
  }
  p.max_group_rows = c.seq_len_q;
  p.ids = ints(a.indexer_block_ids);
  p.ids_stride_row = a.indexer_block_ids.stride[0];
  p.ids_stride_head = c.share_pattern_across_kv_heads ? 0 : a.indexer_block_ids.stride[1];
  p.shared_selection = c.share_pattern_across_kv_heads;
  p.valid_prefix = true;
  p.softmax_scale = scalar_source(a.sm_scale.value_or(1.0f / std::sqrt(static_cast<float>(c.head_dim))));
  p.v_scale = scalar_source(a.v_scale);
  return p;
}

}  // namespace

void run_qsa(const QsaConfig& config, std::size_t workspace, const QsaArguments& arguments,
             const CallOptions& options) {
  const Path path = choose_path(config.device, options);
  CallOptions planned = options;
  planned.num_threads = config.num_threads;  // part of the planned workspace
  if (!options.unchecked) validate_qsa(config, arguments, planned, path == Path::reference ? 0 : workspace);
  if (path == Path::reference) {
    reference::qsa(config, arguments);
    if (options.check_indices) report_bad_indices(reference::qsa_bad_indices(config, arguments));
    return;
  }
  run_attention(lower(config, arguments), config.device, path, planned);
}

QsaPlan::QsaPlan(const QsaConfig& config) : config_(config), workspace_bytes_(kvsieve::workspace_bytes(config)) {
  require_sizes(config.device, shape_of(config));
}

void QsaPlan::run(const QsaArguments& arguments, const CallOptions& options) const {
  run_qsa(config_, workspace_bytes_, arguments, options);
}

Path qsa_path(const QsaConfig& config, const QsaArguments& arguments, const CallOptions& options) {
  const Path path = choose_path(config.device, options);
  return path == Path::reference ? path : resolve_path(lower(config, arguments), config.device, path);
}

std::size_t workspace_bytes(const QsaConfig& config) {
  validate_qsa_config(config);
  return attention_workspace_bytes(config.device, shape_of(config));
}

QsaConfig qsa_config(const QsaArguments& arguments, std::int64_t kv_block_size, std::int64_t seq_len_q,
                     const CallOptions& options) {
  const Tensor& q = arguments.q;
  if (q.rank != 3 && q.rank != 5) {
    throw ArgumentError("q", to_string(q), "[total_q, Hq, D] or [B, Nq, G, Hq, D]");
  }
  const auto require_rank = [](const char* name, const Tensor& tensor, int rank, const char* want) {
    if (tensor.rank != rank) throw ArgumentError(name, to_string(tensor), want);
  };
  require_rank("k_cache", arguments.k_cache, 4, "[num_pages, Hkv, page_size, D]");
  require_rank("block_table", arguments.block_table, 2, "[requests, max_pages]");
  const int id_rank = arguments.indexer_block_ids.rank;
  if (id_rank != 2 && id_rank != 3) {
    throw ArgumentError("indexer_block_ids", to_string(arguments.indexer_block_ids),
                        "[total_q, block_topk] or [total_q, Hkv, block_topk]");
  }

  QsaConfig c;
  c.device = q.device;
  c.use_packed_q = q.rank == 3;
  if (c.use_packed_q) {
    require_rank("qo_indptr", arguments.qo_indptr, 1, "[groups + 1]");
    c.seq_len_q = seq_len_q;
    const std::int64_t groups = arguments.qo_indptr.shape[0] - 1;
    // Rows that no group covers are padding, and count towards the capacity too.
    c.batch_size = seq_len_q > 0 ? std::max(groups, (q.shape[0] + seq_len_q - 1) / seq_len_q) : groups;
    c.num_qo_heads = q.shape[1];
  } else {
    c.batch_size = q.shape[0] * q.shape[1];
    c.seq_len_q = q.shape[2];
    c.num_qo_heads = q.shape[3];
  }
  c.head_dim = q.shape[static_cast<std::size_t>(q.rank - 1)];
  c.num_kv_heads = arguments.k_cache.shape[1];
  c.kv_block_size = kv_block_size;
  c.page_size = arguments.k_cache.shape[2];
  c.block_topk = arguments.indexer_block_ids.shape[static_cast<std::size_t>(id_rank - 1)];
  if (__builtin_mul_overflow(arguments.block_table.shape[1], c.page_size, &c.max_seq_len_kv)) {
    throw ArgumentError("block_table", to_string(arguments.block_table), "a capacity that fits 64 bits");
  }
  c.share_pattern_across_kv_heads = id_rank == 2;
  c.q_dtype = q.dtype;
  c.kv_dtype = arguments.k_cache.dtype;
  c.out_dtype = arguments.out.dtype;
  c.num_threads = options.num_threads;
  return c;
}

void qsa_attention(const QsaArguments& arguments, std::int64_t kv_block_size, std::int64_t seq_len_q,
                   const CallOptions& options) {
  const QsaConfig config = qsa_config(arguments, kv_block_size, seq_len_q, options);
  run_qsa(config, workspace_bytes(config), arguments, options);
}

std::int64_t suggest_group_size(std::int64_t batch_size, std::int64_t rows_per_request, std::int64_t num_qo_heads,
                                std::int64_t num_kv_heads, std::int64_t num_processors) {
  const auto require = [](bool good, const char* name, std::int64_t got, const char* want) {
    if (!good) throw ArgumentError(name, std::to_string(got), want);
  };
  require(batch_size >= 0, "batch_size", batch_size, "at least 0");
  require(rows_per_request >= 0, "rows_per_request", rows_per_request, "at least 0");
  require(num_kv_heads >= 1, "num_kv_heads", num_kv_heads, "at least 1");
  require(num_qo_heads >= 1 && num_qo_heads % num_kv_heads == 0 && num_qo_heads / num_kv_heads <= 16, "num_qo_heads",
          num_qo_heads, "1 to 16 times num_kv_heads");
  require(num_processors >= 1, "num_processors", num_processors, "at least 1");
  constexpr std::int64_t tile_pairs = 128;
  std::int64_t rows = std::min<std::int64_t>({16, tile_pairs / (num_qo_heads / num_kv_heads), rows_per_request});
  rows = std::max<std::int64_t>(rows, 1);
  // Shrink until each processor has a (group, KV head) pair; equal groups rather than one short one at the end.
  const auto pairs = [&](std::int64_t g) {
    const std::int64_t groups = (rows_per_request + g - 1) / g;
    return static_cast<double>(batch_size) * static_cast<double>(groups) * static_cast<double>(num_kv_heads);
  };
  while (rows > 1 && pairs(rows) < static_cast<double>(num_processors)) --rows;
  const std::int64_t groups = std::max<std::int64_t>(1, (rows_per_request + rows - 1) / rows);
  return std::max<std::int64_t>(1, (rows_per_request + groups - 1) / groups);
}

}  // namespace kvsieve
