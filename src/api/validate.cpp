// SPDX-License-Identifier: Apache-2.0
#include "api/validate.hpp"

#include <bit>
#include <limits>
#include <string>

#include "api/argument_checker.hpp"

namespace kvsieve {
namespace {

constexpr std::int64_t max_group = 16;       // query heads per KV head
constexpr std::int64_t max_tile_rows = 128;  // (row, query head) pairs of a QSA group under one KV head
constexpr std::int64_t max_heads = 1 << 16;  // query heads; keeps every workspace size far from overflow
constexpr std::int64_t max_int32 = std::numeric_limits<std::int32_t>::max();

constexpr DTypeSet half_floats = {DType::bf16, DType::f16};

std::string number(std::int64_t value) { return std::to_string(value); }

void check_at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) fail(name, number(value), "at least " + number(least));
}

void check_at_most(const char* name, std::int64_t value, std::int64_t most) {
  if (value > most) fail(name, number(value), "at most " + number(most));
}

void check_head_dim(const char* name, std::int64_t head_dim) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
    fail(name, "a head dim of " + number(head_dim), "64, 128 or 256");
  }
}

void check_heads(const char* name, std::int64_t num_qo_heads, std::int64_t num_kv_heads) {
  if (num_kv_heads < 1 || num_qo_heads < 1 || num_qo_heads > max_heads || num_qo_heads % num_kv_heads != 0 ||
      num_qo_heads / num_kv_heads > max_group) {
    fail(name, number(num_qo_heads) + " query heads for " + number(num_kv_heads) + " KV heads",
         "a multiple of the KV heads, at most " + number(max_group) + " times as many");
  }
}

void check_block_size(const char* name, std::int64_t block_size) {
  if (block_size < 4 || block_size > 128 || !std::has_single_bit(static_cast<std::uint64_t>(block_size))) {
    fail(name, number(block_size), "a power of two from 4 to 128");
  }
}

void check_page_size(const char* name, std::int64_t page_size, std::int64_t block_size) {
  if (page_size < block_size || page_size % block_size != 0) {
    fail(name, "pages of " + number(page_size) + " tokens", "a multiple of the block size " + number(block_size));
  }
}

/// Rows and ids are counted in 32 bits: cu_seqlens_q and qo_indptr cannot name more rows.
void check_rows(const char* name, std::int64_t rows) {
  if (rows < 0 || rows > max_int32) fail(name, number(rows) + " rows", "0 to " + number(max_int32));
}

void check_topk(const char* name, std::int64_t topk) {
  if (topk < 0 || topk > max_int32) fail(name, number(topk) + " ids per row", "0 to " + number(max_int32));
}

/// The longest KV length that a page table can describe must be a 64-bit number.
void check_capacity(const char* name, std::int64_t max_pages, std::int64_t page_size) {
  std::int64_t capacity = 0;
  if (__builtin_mul_overflow(max_pages, page_size, &capacity)) {
    fail(name, number(max_pages) + " pages of " + number(page_size) + " tokens", "fewer than 2^63 tokens");
  }
}

void check_kv_dtype(DType q_dtype, DType kv_dtype) {
  const DTypeSet kv_dtypes = {q_dtype, DType::f8_e4m3};
  if (!kv_dtypes.contains(kv_dtype)) {
    fail("kv_dtype", std::string(dtype_name(kv_dtype)),
         kv_dtypes.to_string() + ", with q_dtype " + std::string(dtype_name(q_dtype)));
  }
}

void check_not_given(const char* name, const Tensor& tensor, const char* reason) {
  if (tensor.defined()) fail(name, tensor, std::string("not given: ") + reason);
}

// ---- MSA -----------------------------------------------------------------------------------------------------------

/// Exactly one of the two descriptions of the KV layout is given.
bool msa_is_paged(const MsaArguments& a) {
  if (a.page_table.defined()) {
    check_not_given("cu_seqlens_k", a.cu_seqlens_k, "k and v are paged, as page_table is given");
    return true;
  }
  if (!a.cu_seqlens_k.defined()) {
    fail("page_table", a.page_table, "page_table and seqused_k (paged k, v) or cu_seqlens_k (flat k, v)");
  }
  check_not_given("seqused_k", a.seqused_k, "k and v are flat, as cu_seqlens_k is given");
  return false;
}

/// Checks k, v and what says where they are. Returns the number of requests.
std::int64_t check_msa_cache(ArgumentChecker& check, const MsaArguments& a) {
  const std::int64_t head_dim = a.q.shape[2];
  const DTypeSet k_dtypes = {a.q.dtype, DType::f8_e4m3};
  if (!msa_is_paged(a)) {
    check.input("k", a.k, k_dtypes, {{"total_k"}, {"Hkv"}, {"D", head_dim}});
    check.input("v", a.v, {a.k.dtype}, {{"total_k", a.k.shape[0]}, {"Hkv", a.k.shape[1]}, {"D", head_dim}});
    check.input("cu_seqlens_k", a.cu_seqlens_k, {DType::i32}, {{"B+1"}});
    if (a.cu_seqlens_k.shape[0] == 0) fail("cu_seqlens_k", a.cu_seqlens_k, "at least 1 element");
    return a.cu_seqlens_k.shape[0] - 1;
  }
  const std::int64_t page_size = a.k.shape[2];
  check.input("k", a.k, k_dtypes, {{"num_pages"}, {"Hkv"}, {"page_size"}, {"D", head_dim}});
  check.input("v", a.v, {a.k.dtype},
              {{"num_pages", a.k.shape[0]}, {"Hkv", a.k.shape[1]}, {"page_size", page_size}, {"D", head_dim}});
  check_page_size("k", page_size, a.block_size);
  check.input("page_table", a.page_table, {DType::i32}, {{"B"}, {"max_pages"}});
  check_capacity("page_table", a.page_table.shape[1], page_size);
  check.input("seqused_k", a.seqused_k, {DType::i32}, {{"B", a.page_table.shape[0]}});
  return a.page_table.shape[0];
}

/// Checks what says which request a row belongs to.
void check_msa_rows(ArgumentChecker& check, const MsaArguments& a, std::int64_t batch, bool decode) {
  if (!decode) {
    check.input("cu_seqlens_q", a.cu_seqlens_q, {DType::i32}, {{"B+1", batch + 1}});
    return;
  }
  check_not_given("cu_seqlens_q", a.cu_seqlens_q, "in decode every request has seqlen_q rows");
  check_at_least("seqlen_q", a.seqlen_q, 1);
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(batch, a.seqlen_q, &rows) || rows != a.q.shape[0]) {
    fail("q", number(a.q.shape[0]) + " rows",
         "B * seqlen_q rows, with B = " + number(batch) + " and seqlen_q = " + number(a.seqlen_q));
  }
}

void check_msa_scalars(ArgumentChecker& check, const MsaArguments& a) {
  if (a.softmax_scale) check_finite("softmax_scale", *a.softmax_scale);
  check.scalar("k_global_scale", a.k_global_scale);
  check.scalar("v_global_scale", a.v_global_scale);
  check_finite("lse_temperature_scale", a.lse_temperature_scale);
  if (a.lse_temperature_scale <= 0.0f) {
    fail("lse_temperature_scale", std::to_string(a.lse_temperature_scale), "greater than 0");
  }
}

}  // namespace

void validate_msa(const MsaArguments& a, const CallOptions& options, bool decode, std::size_t required_workspace) {
  ArgumentChecker check(a.q.device, "q");
  check.input("q", a.q, half_floats, {{"total_q"}, {"Hq"}, {"D"}});
  const std::int64_t total_q = a.q.shape[0], num_qo_heads = a.q.shape[1], head_dim = a.q.shape[2];
  check_rows("q", total_q);
  check_head_dim("q", head_dim);
  check_block_size("block_size", a.block_size);

  const std::int64_t batch = check_msa_cache(check, a);
  const std::int64_t num_kv_heads = a.k.shape[1];
  check_heads("q", num_qo_heads, num_kv_heads);
  check_msa_rows(check, a, batch, decode);
  if (a.q_offset.defined()) check.input("q_offset", a.q_offset, {DType::i32}, {{"B", batch}});
  check.input("q2k_indices", a.q2k_indices, {DType::i32}, {{"Hkv", num_kv_heads}, {"total_q", total_q}, {"topk"}});
  check_topk("q2k_indices", a.q2k_indices.shape[2]);
  check_msa_scalars(check, a);

  const Dims lse_dims = {{"total_q", total_q}, {"Hq", num_qo_heads}};
  check.output("out", a.out, {a.q.dtype}, {{"total_q", total_q}, {"Hq", num_qo_heads}, {"D", head_dim}});
  if (a.lse.defined()) check.output("lse", a.lse, {DType::f32}, lse_dims, Strides::free);
  if (a.lse_t.defined()) check.output("lse_t", a.lse_t, {DType::f32}, lse_dims, Strides::free);

  check_at_least("num_threads", options.num_threads, 0);
  check.workspace(options.workspace, required_workspace);
  check.no_overlap();
}

void validate_msa_config(const MsaConfig& c) {
  check_rows("total_q", c.total_q);
  check_at_least("batch_size", c.batch_size, 0);
  check_at_most("batch_size", c.batch_size, max_int32);
  check_heads("num_qo_heads", c.num_qo_heads, c.num_kv_heads);
  check_head_dim("head_dim", c.head_dim);
  check_topk("topk", c.topk);
  check_block_size("block_size", c.block_size);
  if (!half_floats.contains(c.q_dtype)) fail("q_dtype", std::string(dtype_name(c.q_dtype)), half_floats.to_string());
  check_kv_dtype(c.q_dtype, c.kv_dtype);
  check_at_least("num_threads", c.num_threads, 0);
}

// ---- QSA -----------------------------------------------------------------------------------------------------------

namespace {

void check_qsa_dtypes(const QsaConfig& c) {
  const DTypeSet q_dtypes = {DType::bf16, DType::f16, DType::f8_e4m3};
  if (!q_dtypes.contains(c.q_dtype)) fail("q_dtype", std::string(dtype_name(c.q_dtype)), q_dtypes.to_string());
  check_kv_dtype(c.q_dtype, c.kv_dtype);
  const DTypeSet out_dtypes = c.q_dtype == DType::f8_e4m3 ? half_floats : DTypeSet{c.q_dtype};
  if (!out_dtypes.contains(c.out_dtype)) {
    fail("out_dtype", std::string(dtype_name(c.out_dtype)),
         out_dtypes.to_string() + ", with q_dtype " + std::string(dtype_name(c.q_dtype)));
  }
}

/// The three leading dimensions of a fixed-layout argument must step through the rows at one stride.
void check_collapses(const char* name, const Tensor& t) {
  if (t.numel() == 0) return;
  std::int64_t stride = 0, count = 1;
  for (int i = 2; i >= 0; --i) {
    if (t.shape[i] == 1) continue;
    if (count == 1) stride = t.stride[i];
    if (t.stride[i] != static_cast<__int128>(stride) * count)
      fail(name, t, "leading dimensions [B, Nq, G] that collapse into one row stride");
    count *= t.shape[i];
  }
}

/// Checks q, output_gate, out and lse in the layout of the plan. Returns total_q.
std::int64_t check_packed_rows(ArgumentChecker& check, const QsaConfig& c, const QsaArguments& a) {
  const std::int64_t total_q = a.q.shape[0];
  const Dims dims = {{"total_q", total_q}, {"Hq", c.num_qo_heads}, {"D", c.head_dim}};
  check.input("q", a.q, {c.q_dtype}, {{"total_q"}, {"Hq", c.num_qo_heads}, {"D", c.head_dim}});
  if (a.output_gate.defined()) check.input("output_gate", a.output_gate, {c.out_dtype}, dims);
  check.output("out", a.out, {c.out_dtype}, dims);
  if (a.lse.defined()) {
    check.output("lse", a.lse, {DType::f32}, {{"total_q", total_q}, {"Hq", c.num_qo_heads}}, Strides::free);
  }

  check.input("qo_indptr", a.qo_indptr, {DType::i32}, {{"groups+1"}});
  const std::int64_t groups = a.qo_indptr.shape[0] - 1;
  if (groups < 0 || groups > c.batch_size) {
    fail("qo_indptr", number(groups) + " groups", "0 to " + number(c.batch_size) + ", the plan's batch_size");
  }
  return total_q;
}

std::int64_t check_fixed_rows(ArgumentChecker& check, const QsaConfig& c, const QsaArguments& a) {
  const std::int64_t batch = a.q.shape[0], nq = a.q.shape[1], g = c.seq_len_q, heads = c.num_qo_heads;
  check_not_given("qo_indptr", a.qo_indptr, "the plan is for the fixed layout");
  check.input("q", a.q, {c.q_dtype}, {{"B"}, {"Nq"}, {"G", g}, {"Hq", heads}, {"D", c.head_dim}});
  check_collapses("q", a.q);
  const Dims dims = {{"B", batch}, {"Nq", nq}, {"G", g}, {"Hq", heads}, {"D", c.head_dim}};
  if (a.output_gate.defined()) {
    check.input("output_gate", a.output_gate, {c.out_dtype}, dims);
    check_collapses("output_gate", a.output_gate);
  }
  check.output("out", a.out, {c.out_dtype}, dims);
  check_collapses("out", a.out);
  if (a.lse.defined()) {
    check.output("lse", a.lse, {DType::f32}, {{"B", batch}, {"Nq", nq}, {"G", g}, {"Hq", heads}}, Strides::free);
    check_collapses("lse", a.lse);
  }
  std::int64_t groups = 0;
  if (__builtin_mul_overflow(batch, nq, &groups) || groups > c.batch_size) {
    fail("q", number(batch) + " * " + number(nq) + " groups",
         "at most " + number(c.batch_size) + ", the plan's batch_size");
  }
  return groups * g;
}

}  // namespace

void validate_qsa_config(const QsaConfig& c) {
  check_at_least("batch_size", c.batch_size, 0);
  check_at_least("seq_len_q", c.seq_len_q, 1);
  check_heads("num_qo_heads", c.num_qo_heads, c.num_kv_heads);
  check_head_dim("head_dim", c.head_dim);
  check_block_size("kv_block_size", c.kv_block_size);
  check_page_size("page_size", c.page_size, c.kv_block_size);
  check_topk("block_topk", c.block_topk);
  check_at_least("max_seq_len_kv", c.max_seq_len_kv, 0);
  check_qsa_dtypes(c);
  const std::int64_t group = c.num_qo_heads / c.num_kv_heads;
  if (c.seq_len_q > max_tile_rows / group) {
    fail("seq_len_q", number(c.seq_len_q) + " rows of " + number(group) + " query heads per KV head",
         "at most " + number(max_tile_rows) + " (row, head) pairs");
  }
  check_at_most("batch_size", c.batch_size, max_int32 / c.seq_len_q);
  check_at_least("num_threads", c.num_threads, 0);
}

void validate_qsa(const QsaConfig& c, const QsaArguments& a, const CallOptions& options,
                  std::size_t required_workspace) {
  ArgumentChecker check(c.device, "the plan");
  const std::int64_t total_q = c.use_packed_q ? check_packed_rows(check, c, a) : check_fixed_rows(check, c, a);
  if (total_q > c.batch_size * c.seq_len_q) {
    fail("q", number(total_q) + " rows",
         "at most batch_size * seq_len_q of the plan, " + number(c.batch_size * c.seq_len_q));
  }

  check.input("k_cache", a.k_cache, {c.kv_dtype},
              {{"num_pages"}, {"Hkv", c.num_kv_heads}, {"page_size", c.page_size}, {"D", c.head_dim}});
  check.input(
      "v_cache", a.v_cache, {c.kv_dtype},
      {{"num_pages", a.k_cache.shape[0]}, {"Hkv", c.num_kv_heads}, {"page_size", c.page_size}, {"D", c.head_dim}});
  check.input("block_table", a.block_table, {DType::i32}, {{"requests"}, {"max_pages"}});
  check_capacity("block_table", a.block_table.shape[1], c.page_size);
  if (c.share_pattern_across_kv_heads) {
    check.input("indexer_block_ids", a.indexer_block_ids, {DType::i32},
                {{"total_q", total_q}, {"block_topk", c.block_topk}});
  } else {
    check.input("indexer_block_ids", a.indexer_block_ids, {DType::i32},
                {{"total_q", total_q}, {"Hkv", c.num_kv_heads}, {"block_topk", c.block_topk}});
  }
  check.input("token_to_request", a.token_to_request, {DType::i32}, {{"total_q", total_q}});
  check.input("query_positions", a.query_positions, {DType::i32, DType::i64}, {{"total_q", total_q}});

  if (a.sm_scale) check.scalar("sm_scale", *a.sm_scale);
  check.scalar("v_scale", a.v_scale);
  check_at_least("num_threads", options.num_threads, 0);
  check.workspace(options.workspace, required_workspace);
  check.no_overlap();
}

// ---- Merge ---------------------------------------------------------------------------------------------------------

void validate_merge(const MergeArguments& a, const CallOptions& options) {
  const DTypeSet dtypes = {DType::bf16, DType::f16, DType::f32};
  ArgumentChecker check(a.outs.device, "outs");
  check.input("outs", a.outs, dtypes, {{"num_states"}, {"total_q"}, {"Hq"}, {"D"}});
  const std::int64_t total_q = a.outs.shape[1], heads = a.outs.shape[2];
  check.input("lses", a.lses, {DType::f32}, {{"num_states", a.outs.shape[0]}, {"total_q", total_q}, {"Hq", heads}},
              Strides::free);
  check.output("out", a.out, dtypes, {{"total_q", total_q}, {"Hq", heads}, {"D", a.outs.shape[3]}});
  if (a.lse.defined()) {
    check.output("lse", a.lse, {DType::f32}, {{"total_q", total_q}, {"Hq", heads}}, Strides::free);
  }
  check_at_least("num_threads", options.num_threads, 0);
  check.no_overlap();
}

}  // namespace kvsieve
