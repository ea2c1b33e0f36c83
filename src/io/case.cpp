// SPDX-License-Identifier: Apache-2.0
#include "io/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "io/case_metadata.hpp"

namespace kvsieve::io {
namespace {

constexpr std::string_view format_name = "kvsieve-case/1";
constexpr std::int64_t max_int32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_gap = 4096;
constexpr KvLayout kv_layouts[] = {KvLayout::nhd, KvLayout::hnd, KvLayout::packed_nhd, KvLayout::packed_hnd};
constexpr Operation operations[] = {Operation::msa_prefill, Operation::msa_decode, Operation::qsa};

/// Builds a Case from a parsed file.
class Loader {
 public:
  explicit Loader(const SafetensorsFile& file) : file_(file), metadata_(file) {}

  Case load() {
    case_.name = file_.name;
    case_.mapping = file_.mapping;
    read_header();
    if (case_.is_msa()) {
      read_msa();
    } else {
      read_qsa();
    }
    read_expected();
    note_ignored();
    return std::move(case_);
  }

 private:
  void read_header() {
    const auto format = metadata_.text("format");
    if (!format) metadata_.fail_missing("format", format_name);
    if (*format != format_name) metadata_.fail("format", format_name);
    const auto name = metadata_.text("op");
    constexpr std::string_view wanted = "msa_prefill, msa_decode or qsa";
    if (!name) metadata_.fail_missing("op", wanted);
    bool known = false;
    for (const Operation operation : operations) {
      if (operation_name(operation) != *name) continue;
      case_.operation = operation;
      known = true;
    }
    if (!known) metadata_.fail("op", wanted);
    case_.seed = metadata_.text("seed").value_or("");
    case_.layout.row_gap = metadata_.integer("row_gap", 0, max_gap).value_or(0);
    case_.layout.index_gap = metadata_.integer("index_gap", 0, max_gap).value_or(0);
  }

  void read_msa() {
    MsaArguments& a = case_.msa;
    a.q = rows(required("q", 3, 3));
    read_kv("k", "v", 3, a.k, a.v);
    a.q2k_indices = indices(required("q2k_indices", 3, 3));
    a.cu_seqlens_q = tensor("cu_seqlens_q");
    a.cu_seqlens_k = tensor("cu_seqlens_k");
    a.page_table = indices(optional("page_table", 2, 2));
    a.seqused_k = tensor("seqused_k");
    a.q_offset = tensor("q_offset");
    a.seqlen_q = metadata_.integer("seqlen_q", 0, max_int32).value_or(a.seqlen_q);
    a.causal = metadata_.flag("causal").value_or(a.causal);
    a.softmax_scale = metadata_.real("softmax_scale");
    a.k_global_scale = scalar("k_global_scale").value_or(a.k_global_scale);
    a.v_global_scale = scalar("v_global_scale").value_or(a.v_global_scale);
    a.valid_prefix = metadata_.flag("valid_prefix").value_or(a.valid_prefix);
    a.block_size = metadata_.integer("block_size", 1, max_int32).value_or(a.block_size);
    if (const auto scale = metadata_.real("lse_temperature_scale")) {
      case_.wants_lse_t = true;
      a.lse_temperature_scale = *scale;
    }
  }

  void read_qsa() {
    QsaArguments& a = case_.qsa;
    QsaConfig& c = case_.qsa_config;
    a.q = rows(required("q", 3, 5));
    if (a.q.rank == 4) throw CaseError(file_.name, "q", "has 4 dimensions, want 3 (packed) or 5 (fixed)");
    read_kv("k_cache", "v_cache", 4, a.k_cache, a.v_cache);
    a.block_table = indices(required("block_table", 2, 2));
    a.indexer_block_ids = indices(required("indexer_block_ids", 2, 3));
    a.token_to_request = required("token_to_request", 1, 1);
    a.query_positions = required("query_positions", 1, 1);
    a.qo_indptr = optional("qo_indptr", 1, 1);
    a.output_gate = rows(tensor("output_gate"));
    a.sm_scale = scalar("sm_scale");
    a.v_scale = scalar("v_scale").value_or(a.v_scale);

    c.use_packed_q = a.q.rank == 3;
    const std::string_view layout = c.use_packed_q ? "packed" : "fixed";
    if (const auto given = metadata_.text("layout"); given && *given != layout) {
      metadata_.fail("layout", fmt::format("{}, as q has {} dimensions", layout, a.q.rank));
    }
    c.share_pattern_across_kv_heads = a.indexer_block_ids.rank == 2;
    if (const auto given = metadata_.flag("share_pattern_across_kv_heads");
        given && *given != c.share_pattern_across_kv_heads) {
      metadata_.fail("share_pattern_across_kv_heads",
                     fmt::format("{}, as indexer_block_ids has {} dimensions", c.share_pattern_across_kv_heads,
                                 a.indexer_block_ids.rank));
    }
    c.seq_len_q = group_size(a);
    c.batch_size = metadata_.integer("batch_size", 0, max_int32).value_or(least_batch_size(a, c.seq_len_q));
    c.num_qo_heads = a.q.shape[a.q.rank - 2];
    c.head_dim = a.q.shape[a.q.rank - 1];
    c.num_kv_heads = a.k_cache.shape[1];
    c.page_size = a.k_cache.shape[2];
    c.block_topk = a.indexer_block_ids.shape[a.indexer_block_ids.rank - 1];
    c.q_dtype = a.q.dtype;
    c.kv_dtype = a.k_cache.dtype;
    c.out_dtype = out_dtype(a);
    const auto block_size = metadata_.integer("kv_block_size", 1, max_int32);
    if (!block_size) metadata_.fail_missing("kv_block_size", "the keys of a block");
    c.kv_block_size = *block_size;
    c.max_seq_len_kv = max_seq_len_kv(a);
  }

  /// The groups that a plan must hold: those of qo_indptr, and enough for the rows that no group owns.
  std::int64_t least_batch_size(const QsaArguments& a, std::int64_t group_rows) {
    if (a.q.rank == 5) {
      std::int64_t groups = 0;
      if (__builtin_mul_overflow(a.q.shape[0], a.q.shape[1], &groups)) {
        throw CaseError(file_.name, "q", "shape overflows 63 bits");
      }
      return groups;
    }
    if (!a.qo_indptr.defined()) throw CaseError(file_.name, "qo_indptr", "is missing, a packed q needs it");
    if (a.qo_indptr.shape[0] == 0) throw CaseError(file_.name, "qo_indptr", "is empty, want groups + 1 elements");
    const std::int64_t rows = a.q.shape[0];
    return std::max(a.qo_indptr.shape[0] - 1, rows / group_rows + (rows % group_rows != 0 ? 1 : 0));
  }

  std::int64_t group_size(const QsaArguments& a) {
    const auto given = metadata_.integer("group_size", 1, max_int32);
    if (a.q.rank == 3) {
      if (!given) metadata_.fail_missing("group_size", "the rows of a group, as q is packed");
      return *given;
    }
    if (given && *given != a.q.shape[2]) {
      metadata_.fail("group_size", fmt::format("{}, the third dimension of q", a.q.shape[2]));
    }
    return a.q.shape[2];
  }

  DType out_dtype(const QsaArguments& a) {
    const auto name = metadata_.text("out_dtype");
    if (!name) {
      if (a.q.dtype == DType::f8_e4m3) metadata_.fail_missing("out_dtype", "BF16 or F16, as q is F8_E4M3");
      return a.q.dtype;
    }
    const DType dtype = safetensors_dtype(*name);
    if (dtype != DType::bf16 && dtype != DType::f16) metadata_.fail("out_dtype", "BF16 or F16");
    return dtype;
  }

  std::int64_t max_seq_len_kv(const QsaArguments& a) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    if (const auto given = metadata_.integer("max_seq_len_kv", 0, most)) return *given;
    std::int64_t capacity = 0;
    return __builtin_mul_overflow(a.block_table.shape[1], a.k_cache.shape[2], &capacity) ? most : capacity;
  }

  /// K and V in the memory layout that the metadata ask for. Paged caches have rank 4, flat ones rank 3.
  void read_kv(std::string_view k_name, std::string_view v_name, int lowest_rank, Tensor& k, Tensor& v) {
    k = required(k_name, lowest_rank, 4);
    v = required(v_name, lowest_rank, 4);
    const KvLayout stored = row_major_layout(k.rank);
    case_.layout.kv = stored;
    const auto name = metadata_.text("kv_layout");
    if (!name) return;
    bool known = false;
    for (const KvLayout layout : kv_layouts) {
      if (kv_layout_name(layout) != *name) continue;
      case_.layout.kv = layout;
      known = true;
    }
    if (!known) metadata_.fail("kv_layout", "hnd, nhd, packed_hnd or packed_nhd");
    if (case_.layout.kv == stored) return;
    if (v.dtype != k.dtype || v.rank != k.rank || v.shape != k.shape) {
      throw CaseError(file_.name, v_name, fmt::format("is {}, want dtype and shape of {}", to_string(v), k_name));
    }
    const KvTensors laid_out = make_kv_tensors(k.dtype, std::span(k.shape).first(k.rank), case_.layout.kv);
    copy_elements(k, laid_out.k.view);
    copy_elements(v, laid_out.v.view);
    k = case_.keep(laid_out.k);
    v = case_.keep(laid_out.v);
  }

  void read_expected() {
    case_.expected.out = expected("expected.out", 0);
    case_.expected.lse = expected("expected.lse", 1);
    case_.expected.lse_t = expected("expected.lse_t", 1);
    if (case_.expected.lse_t.defined() && !case_.wants_lse_t) {
      metadata_.fail_missing("lse_temperature_scale", "a finite number, as expected.lse_t is given");
    }
  }

  /// An f32 tensor of q's shape without its last `dropped` dimensions.
  Tensor expected(std::string_view name, int dropped) {
    const Tensor result = tensor(name);
    if (!result.defined()) return result;
    const Tensor& q = case_.q();
    bool same = result.dtype == DType::f32 && result.rank == q.rank - dropped;
    for (int i = 0; same && i < result.rank; ++i) same = result.shape[i] == q.shape[i];
    if (!same) {
      throw CaseError(file_.name, name,
                      fmt::format("is {}, want f32 and the shape of q{}", to_string(result),
                                  dropped == 0 ? "" : " without its last dimension"));
    }
    return result;
  }

  Tensor required(std::string_view name, int lowest_rank, int highest_rank) {
    if (!file_.tensors.contains(name)) throw CaseError(file_.name, name, "is missing");
    return optional(name, lowest_rank, highest_rank);
  }

  Tensor optional(std::string_view name, int lowest_rank, int highest_rank) {
    const Tensor result = tensor(name);
    if (result.defined() && (result.rank < lowest_rank || result.rank > highest_rank)) {
      throw CaseError(file_.name, name,
                      fmt::format("has {} dimensions, want {}", result.rank,
                                  lowest_rank == highest_rank ? std::to_string(lowest_rank)
                                                              : fmt::format("{} to {}", lowest_rank, highest_rank)));
    }
    return result;
  }

  /// A tensor of the file, undefined when it has none of that name. Data that are not aligned are copied.
  Tensor tensor(std::string_view name) {
    known_tensors_.emplace(name);
    const auto found = file_.tensors.find(name);
    if (found == file_.tensors.end()) return {};
    const StoredTensor& stored = found->second;
    if (reinterpret_cast<std::uintptr_t>(stored.data) % dtype_size(stored.dtype) == 0) {
      return row_major(stored.data, stored.dtype, stored.shape);
    }
    const OwnedTensor aligned = make_tensor(stored.dtype, stored.shape);
    if (stored.bytes != 0) std::memcpy(aligned.view.data, stored.data, stored.bytes);
    return case_.keep(aligned);
  }

  /// A scalar is a number in the metadata, or a one-element tensor that the call reads.
  std::optional<Scalar> scalar(std::string_view name) {
    const auto number = metadata_.real(name);
    const Tensor element = tensor(name);
    if (number && element.defined()) throw CaseError(file_.name, name, "is given in the metadata as well");
    if (number) return Scalar(*number);
    if (element.defined()) return Scalar(element);
    return std::nullopt;
  }

  Tensor rows(const Tensor& stored) { return with_gap(stored, 2, case_.layout.row_gap); }
  Tensor indices(const Tensor& stored) { return with_gap(stored, 1, case_.layout.index_gap); }

  Tensor with_gap(const Tensor& stored, int row_rank, std::int64_t gap) {
    if (gap == 0 || !stored.defined()) return stored;
    const OwnedTensor spaced = make_tensor(stored.dtype, std::span(stored.shape).first(stored.rank), row_rank, gap);
    copy_elements(stored, spaced.view);
    return case_.keep(spaced);
  }

  void note_ignored() {
    for (const auto& [key, value] : file_.metadata) {
      if (!metadata_.was_read(key)) case_.ignored.push_back("metadata " + in_quotes(key));
    }
    for (const auto& [name, stored] : file_.tensors) {
      if (!known_tensors_.contains(name)) case_.ignored.push_back("tensor " + in_quotes(name));
    }
  }

  const SafetensorsFile& file_;
  MetadataReader metadata_;
  std::set<std::string, std::less<>> known_tensors_;
  Case case_;
};

Case case_from(const SafetensorsFile& file) {
  try {
    return Loader(file).load();
  } catch (const std::bad_alloc&) {
    throw CaseError(file.name, "not enough memory to hold its tensors");
  }
}

/// What a case becomes in a file. Holds the copies of tensors that are not row-major in memory.
class Writer {
 public:
  explicit Writer(const Case& test_case) : case_(test_case) {
    metadata["format"] = format_name;
    metadata["op"] = operation_name(case_.operation);
    if (!case_.seed.empty()) metadata["seed"] = case_.seed;
    if (case_.layout.kv != row_major_layout(case_.k().rank)) metadata["kv_layout"] = kv_layout_name(case_.layout.kv);
    if (case_.layout.row_gap != 0) put("row_gap", case_.layout.row_gap);
    if (case_.layout.index_gap != 0) put("index_gap", case_.layout.index_gap);
    if (case_.is_msa()) {
      write_msa(case_.msa);
    } else {
      write_qsa(case_.qsa, case_.qsa_config);
    }
    put("expected.out", case_.expected.out);
    put("expected.lse", case_.expected.lse);
    put("expected.lse_t", case_.expected.lse_t);
  }

  Metadata metadata;
  std::vector<TensorToWrite> tensors;

 private:
  void write_msa(const MsaArguments& a) {
    put("q", a.q);
    put("k", a.k);
    put("v", a.v);
    put("q2k_indices", a.q2k_indices);
    put("cu_seqlens_q", a.cu_seqlens_q);
    put("cu_seqlens_k", a.cu_seqlens_k);
    put("page_table", a.page_table);
    put("seqused_k", a.seqused_k);
    put("q_offset", a.q_offset);
    if (case_.decode()) put("seqlen_q", a.seqlen_q);
    put("causal", a.causal);
    put("valid_prefix", a.valid_prefix);
    put("block_size", a.block_size);
    if (a.softmax_scale) put("softmax_scale", *a.softmax_scale);
    put("k_global_scale", a.k_global_scale);
    put("v_global_scale", a.v_global_scale);
    if (case_.wants_lse_t) put("lse_temperature_scale", a.lse_temperature_scale);
  }

  void write_qsa(const QsaArguments& a, const QsaConfig& c) {
    put("q", a.q);
    put("k_cache", a.k_cache);
    put("v_cache", a.v_cache);
    put("block_table", a.block_table);
    put("indexer_block_ids", a.indexer_block_ids);
    put("token_to_request", a.token_to_request);
    put("query_positions", a.query_positions);
    put("qo_indptr", a.qo_indptr);
    put("output_gate", a.output_gate);
    put("kv_block_size", c.kv_block_size);
    put("group_size", c.seq_len_q);
    put("batch_size", c.batch_size);
    put("max_seq_len_kv", c.max_seq_len_kv);
    put("share_pattern_across_kv_heads", c.share_pattern_across_kv_heads);
    metadata["layout"] = c.use_packed_q ? "packed" : "fixed";
    metadata["out_dtype"] = safetensors_dtype_name(c.out_dtype);
    if (a.sm_scale) put("sm_scale", *a.sm_scale);
    put("v_scale", a.v_scale);
  }

  void put(const std::string& name, const Tensor& tensor) {
    if (!tensor.defined()) return;
    const std::span<const std::int64_t> shape = std::span(tensor.shape).first(tensor.rank);
    Tensor source = tensor;
    if (!tensor.is_contiguous()) {
      copies_.push_back(make_tensor(tensor.dtype, shape));
      source = copies_.back().view;
      copy_elements(tensor, source);
    }
    const auto bytes = static_cast<std::size_t>(source.numel()) * dtype_size(source.dtype);
    tensors.push_back(
        {name, {source.dtype, {shape.begin(), shape.end()}, static_cast<std::byte*>(source.data), bytes}});
  }

  void put(const std::string& key, const Scalar& value) {
    if (const auto* const number = std::get_if<float>(&value)) {
      put(key, *number);
    } else {
      put(key, std::get<Tensor>(value));
    }
  }
  void put(const std::string& key, bool value) { metadata[key] = value ? "true" : "false"; }
  void put(const std::string& key, std::int64_t value) { metadata[key] = std::to_string(value); }
  /// The shortest digits that read back as the same float.
  void put(const std::string& key, float value) { metadata[key] = fmt::format("{}", value); }

  const Case& case_;
  std::vector<OwnedTensor> copies_;
};

}  // namespace

std::string_view operation_name(Operation operation) noexcept {
  switch (operation) {
    case Operation::msa_prefill:
      return "msa_prefill";
    case Operation::msa_decode:
      return "msa_decode";
    case Operation::qsa:
      return "qsa";
  }
  return "";
}

Case load_case(const std::string& path) { return case_from(read_safetensors(path)); }

Case parse_case(std::span<const std::byte> bytes, std::string name) {
  return case_from(parse_safetensors(bytes, std::move(name)));
}

void write_case(const Case& test_case, const std::string& path) {
  Writer writer(test_case);
  write_safetensors(path, writer.metadata, std::move(writer.tensors));
}

std::vector<std::byte> serialize_case(const Case& test_case) {
  Writer writer(test_case);
  return serialize_safetensors(writer.metadata, std::move(writer.tensors));
}

}  // namespace kvsieve::io
