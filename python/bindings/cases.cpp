// SPDX-License-Identifier: Apache-2.0
//
// Case files: a live call written as one, a file read and run.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <memory>
#include <string>

#include "call_options.hpp"
#include "calls.hpp"
#include "io/case.hpp"
#include "io/case_run.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

// ---- Writing a live call
// ---------------------------------------------------------------------------------------------

/// Unused elements after each run of `row` elements at `stride`, where the case format can say it.
std::int64_t gap_of(std::int64_t stride, std::int64_t row) {
  constexpr std::int64_t most = 4096;
  const std::int64_t gap = stride - row;
  return gap > 0 && gap <= most ? gap : 0;
}

/// How K and V lie in memory, as far as the format can say it: strides of any other kind are replayed row-major.
io::KvLayout kv_layout(const Tensor& k, const Tensor& v) {
  const int head = 1, token = k.rank == 3 ? 0 : 2;
  const bool head_first = k.stride[head] > k.stride[token] && k.shape[head] > 1 && k.shape[token] > 1;
  const bool token_first = k.stride[token] > k.stride[head] && k.shape[head] > 1 && k.shape[token] > 1;
  const bool hnd = head_first || (!token_first && k.rank == 4);
  const std::int64_t head_dim = k.shape[static_cast<std::size_t>(k.rank - 1)];
  const auto* const after_k =
      static_cast<const std::byte*>(k.data) + head_dim * static_cast<std::int64_t>(dtype_size(k.dtype));
  const bool packed = v.data == after_k && v.stride == k.stride && k.numel() > head_dim;
  if (packed) return hnd ? io::KvLayout::packed_hnd : io::KvLayout::packed_nhd;
  return hnd ? io::KvLayout::hnd : io::KvLayout::nhd;
}

/// (kv_layout, row_gap, index_gap) of live tensors on any device. Reads no element.
nb::tuple memory_layout(nb::handle q, nb::handle k, nb::handle v, nb::handle ids) {
  const TensorArgument q_in(q, "q"), k_in(k, "k"), v_in(v, "v"), ids_in(ids, "ids");
  const Tensor &qt = q_in.tensor(), &kt = k_in.tensor(), &it = ids_in.tensor();
  const auto last = static_cast<std::size_t>(qt.rank - 1), last_id = static_cast<std::size_t>(it.rank - 1);
  const bool dense_heads = qt.rank >= 2 && qt.stride[last - 1] == qt.shape[last];
  const std::int64_t row_gap =
      qt.rank >= 3 && dense_heads ? gap_of(qt.stride[last - 2], qt.shape[last - 1] * qt.shape[last]) : 0;
  const std::int64_t index_gap = it.rank >= 2 ? gap_of(it.stride[last_id - 1], it.shape[last_id]) : 0;
  return nb::make_tuple(std::string(io::kv_layout_name(kv_layout(kt, v_in.tensor()))), row_gap, index_gap);
}

/// Fills a case from Python's dictionaries. Tensors are on the CPU.
class CaseBuilder {
 public:
  CaseBuilder(nb::dict tensors, nb::dict scalars) : tensors_(std::move(tensors)), scalars_(std::move(scalars)) {}

  io::Case build(std::string_view operation) {
    bool known = false;
    for (const auto op : {io::Operation::msa_prefill, io::Operation::msa_decode, io::Operation::qsa}) {
      if (io::operation_name(op) != operation) continue;
      case_.operation = op;
      known = true;
    }
    if (!known) throw ArgumentError("op", "\"" + std::string(operation) + "\"", "msa_prefill, msa_decode or qsa");
    if (case_.is_msa()) {
      fill_msa();
    } else {
      fill_qsa();
    }
    set_layout();
    case_.expected.out = tensor("expected.out");
    case_.expected.lse = tensor("expected.lse");
    case_.expected.lse_t = tensor("expected.lse_t");
    return std::move(case_);
  }

 private:
  void fill_msa() {
    MsaArguments& a = case_.msa;
    a.q = tensor("q");
    a.k = tensor("k");
    a.v = tensor("v");
    a.q2k_indices = tensor("q2k_indices");
    a.cu_seqlens_q = tensor("cu_seqlens_q");
    a.cu_seqlens_k = tensor("cu_seqlens_k");
    a.page_table = tensor("page_table");
    a.seqused_k = tensor("seqused_k");
    a.q_offset = tensor("q_offset");
    set("seqlen_q", a.seqlen_q);
    set("causal", a.causal);
    set("valid_prefix", a.valid_prefix);
    set("block_size", a.block_size);
    if (has("softmax_scale")) a.softmax_scale = nb::cast<float>(scalars_["softmax_scale"]);
    a.k_global_scale = scalar("k_global_scale").value_or(a.k_global_scale);
    a.v_global_scale = scalar("v_global_scale").value_or(a.v_global_scale);
    case_.wants_lse_t = has("lse_temperature_scale");
    set("lse_temperature_scale", a.lse_temperature_scale);
  }

  void fill_qsa() {
    QsaArguments& a = case_.qsa;
    a.q = tensor("q");
    a.k_cache = tensor("k_cache");
    a.v_cache = tensor("v_cache");
    a.block_table = tensor("block_table");
    a.indexer_block_ids = tensor("indexer_block_ids");
    a.token_to_request = tensor("token_to_request");
    a.query_positions = tensor("query_positions");
    a.qo_indptr = tensor("qo_indptr");
    a.output_gate = tensor("output_gate");
    a.sm_scale = scalar("sm_scale");
    a.v_scale = scalar("v_scale").value_or(a.v_scale);
    QsaConfig& c = case_.qsa_config;
    set("kv_block_size", c.kv_block_size);
    set("group_size", c.seq_len_q);
    set("batch_size", c.batch_size);
    set("max_seq_len_kv", c.max_seq_len_kv);
    c.use_packed_q = a.q.rank == 3;
    c.share_pattern_across_kv_heads = a.indexer_block_ids.rank == 2;
    c.out_dtype = dtype_from_name(nb::cast<std::string_view>(scalars_["out_dtype"]));
  }

  void set_layout() {
    if (!has("kv_layout")) {
      case_.layout.kv = io::row_major_layout(case_.k().rank);
      return;
    }
    const auto name = nb::cast<std::string_view>(scalars_["kv_layout"]);
    for (const auto layout :
         {io::KvLayout::nhd, io::KvLayout::hnd, io::KvLayout::packed_nhd, io::KvLayout::packed_hnd}) {
      if (io::kv_layout_name(layout) == name) case_.layout.kv = layout;
    }
    set("row_gap", case_.layout.row_gap);
    set("index_gap", case_.layout.index_gap);
    if (has("seed")) case_.seed = nb::cast<std::string>(scalars_["seed"]);
  }

  bool has(const char* name) const { return scalars_.contains(name); }

  template <class T>
  void set(const char* name, T& value) {
    if (has(name)) value = nb::cast<T>(scalars_[name]);
  }

  Tensor tensor(const char* name) {
    if (!tensors_.contains(name)) return {};
    arguments_.emplace_back(tensors_[name], name);
    const Tensor& found = arguments_.back().tensor();
    if (found.device.type != DeviceType::cpu) throw ArgumentError(name, to_string(found), "a tensor on cpu");
    return found;
  }

  std::optional<Scalar> scalar(const char* name) {
    if (tensors_.contains(name)) return Scalar(tensor(name));
    if (has(name)) return Scalar(nb::cast<float>(scalars_[name]));
    return std::nullopt;
  }

  nb::dict tensors_, scalars_;
  std::deque<TensorArgument> arguments_;  // keeps the arrays while the case is written
  io::Case case_;
};

void write_case(const std::string& path, std::string_view operation, nb::dict tensors, nb::dict scalars) {
  CaseBuilder builder(std::move(tensors), std::move(scalars));
  io::write_case(builder.build(operation), path);
}

// ---- Reading and running
// ---------------------------------------------------------------------------------------------

/// A NumPy array over a tensor of the case, as unsigned integers where NumPy itself has no such dtype: Python then
/// views it as the dtype of the name. `owner` keeps the memory.
nb::tuple as_numpy(const Tensor& t, nb::handle owner) {
  nb::dlpack::dtype dtype = nb::dtype<std::int32_t>();
  if (t.dtype == DType::i64) dtype = nb::dtype<std::int64_t>();
  if (t.dtype == DType::f32) dtype = nb::dtype<float>();
  if (t.dtype == DType::bf16 || t.dtype == DType::f16) dtype = nb::dtype<std::uint16_t>();
  if (t.dtype == DType::f8_e4m3) dtype = nb::dtype<std::uint8_t>();
  const std::vector<std::size_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
  const nb::ndarray<nb::numpy> array(t.data, shape.size(), shape.data(), owner, t.stride.data(), dtype);
  return nb::make_tuple(nb::cast(array, nb::rv_policy::reference), std::string(dtype_name(t.dtype)));
}

struct LoadedCase {
  io::Case data;
};

class TensorDict {
 public:
  explicit TensorDict(nb::handle owner) : owner_(owner) {}
  void put(const char* name, const Tensor& tensor) {
    if (tensor.defined()) dict[name] = as_numpy(tensor, owner_);
  }
  void put(const char* name, const Scalar& scalar) {
    if (const float* const value = std::get_if<float>(&scalar)) {
      dict[name] = *value;
    } else {
      put(name, std::get<Tensor>(scalar));
    }
  }
  nb::dict dict;

 private:
  nb::handle owner_;
};

/// The arguments of a case: tensors as (array, dtype name), scalars as numbers.
nb::dict arguments(nb::handle self) {
  const io::Case& loaded = nb::cast<LoadedCase&>(self).data;
  TensorDict out(self);
  if (loaded.is_msa()) {
    const MsaArguments& a = loaded.msa;
    out.put("q", a.q);
    out.put("k", a.k);
    out.put("v", a.v);
    out.put("q2k_indices", a.q2k_indices);
    out.put("cu_seqlens_q", a.cu_seqlens_q);
    out.put("cu_seqlens_k", a.cu_seqlens_k);
    out.put("page_table", a.page_table);
    out.put("seqused_k", a.seqused_k);
    out.put("q_offset", a.q_offset);
    out.put("k_global_scale", a.k_global_scale);
    out.put("v_global_scale", a.v_global_scale);
    if (loaded.decode()) out.dict["seqlen_q"] = a.seqlen_q;
    out.dict["causal"] = a.causal;
    out.dict["valid_prefix"] = a.valid_prefix;
    out.dict["block_size"] = a.block_size;
    if (a.softmax_scale) out.dict["softmax_scale"] = *a.softmax_scale;
    if (loaded.wants_lse_t) out.dict["lse_temperature_scale"] = a.lse_temperature_scale;
  } else {
    const QsaArguments& a = loaded.qsa;
    const QsaConfig& c = loaded.qsa_config;
    out.put("q", a.q);
    out.put("k_cache", a.k_cache);
    out.put("v_cache", a.v_cache);
    out.put("block_table", a.block_table);
    out.put("indexer_block_ids", a.indexer_block_ids);
    out.put("token_to_request", a.token_to_request);
    out.put("query_positions", a.query_positions);
    out.put("qo_indptr", a.qo_indptr);
    out.put("output_gate", a.output_gate);
    if (a.sm_scale) out.put("sm_scale", *a.sm_scale);
    out.put("v_scale", a.v_scale);
    out.dict["kv_block_size"] = c.kv_block_size;
    out.dict["seq_len_q"] = c.seq_len_q;
    out.dict["max_seq_len_kv"] = c.max_seq_len_kv;
    out.dict["out_dtype"] = std::string(dtype_name(c.out_dtype));
  }
  return out.dict;
}

nb::dict expected(nb::handle self) {
  const io::Expected& values = nb::cast<LoadedCase&>(self).data.expected;
  TensorDict out(self);
  out.put("out", values.out);
  out.put("lse", values.lse);
  out.put("lse_t", values.lse_t);
  return out.dict;
}

struct FinishedRun {
  std::unique_ptr<io::CaseRun> run;
  io::RunCheck check;
};

FinishedRun run_case(const LoadedCase& loaded, std::string_view device, std::string_view path, int num_threads,
                     bool check) {
  CallOptions options;
  options.path = path_from_name(path);
  options.num_threads = num_threads;
  const Device where = device_from_name(device);
  const nb::gil_scoped_release release;
  io::Case copy = loaded.data;
  if (check && !copy.expected.out.defined()) io::add_reference_results(copy);
  const io::Expected values = copy.expected;
  FinishedRun finished;
  finished.run = std::make_unique<io::CaseRun>(std::move(copy), options, /*with_lse=*/true, where);
  finished.run->execute();
  finished.check = io::check_run(*finished.run, values);
  return finished;
}

nb::dict results(nb::handle self) {
  const FinishedRun& finished = nb::cast<FinishedRun&>(self);
  TensorDict out(self);
  out.put("out", finished.run->out());
  out.put("lse", finished.run->lse());
  out.put("lse_t", finished.run->lse_t());
  return out.dict;
}

nb::dict errors(const FinishedRun& finished) {
  nb::dict out;
  if (finished.check.out) {
    out["out.frobenius"] = finished.check.out->frobenius;
    out["out.element"] = finished.check.out->element;
  }
  if (finished.check.lse) out["lse"] = finished.check.lse->absolute;
  if (finished.check.lse_t) out["lse_t"] = finished.check.lse_t->absolute;
  return out;
}

}  // namespace

void bind_cases(nb::module_& m) {
  nb::class_<FinishedRun>(m, "FinishedRun")
      .def_prop_ro("results", &results)
      .def_prop_ro("errors", &errors)
      .def_prop_ro("failure", [](const FinishedRun& self) { return self.check.failure; })
      .def_prop_ro("compared", [](const FinishedRun& self) { return self.check.compared(); });
  nb::class_<LoadedCase>(m, "LoadedCase")
      .def_prop_ro("op", [](const LoadedCase& self) { return std::string(io::operation_name(self.data.operation)); })
      .def_prop_ro("ignored", [](const LoadedCase& self) { return self.data.ignored; })
      .def_prop_ro("arguments", &arguments)
      .def_prop_ro("expected", &expected)
      .def("run", &run_case);
  m.def("load_case", [](const std::string& path) { return LoadedCase{io::load_case(path)}; });
  m.def("write_case", &write_case);
  m.def("memory_layout", &memory_layout);
}

}  // namespace kvsieve::python
