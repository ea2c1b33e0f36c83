// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/qsa.hpp"

#include <nanobind/stl/string_view.h>

#include <string>

#include "api/qsa_call.hpp"
#include "call_options.hpp"
#include "calls.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

/// The live arguments of a call and the memory behind them.
struct QsaInputs {
  QsaInputs(nb::handle q_in, nb::handle k_cache, nb::handle v_cache, nb::handle block_table,
            nb::handle indexer_block_ids, nb::handle token_to_request, nb::handle query_positions, nb::handle qo_indptr,
            nb::handle sm_scale_in, nb::handle v_scale_in, nb::handle output_gate)
      : q(q_in, "q"),
        k(k_cache, "k_cache"),
        v(v_cache, "v_cache"),
        table(block_table, "block_table"),
        ids(indexer_block_ids, "indexer_block_ids"),
        requests(token_to_request, "token_to_request"),
        positions(query_positions, "query_positions"),
        indptr(qo_indptr, "qo_indptr"),
        gate(output_gate, "output_gate"),
        sm_scale(sm_scale_in, "sm_scale", 1.0f),
        v_scale(v_scale_in, "v_scale", 1.0f),
        framework(q_in) {
    arguments.q = q.tensor();
    arguments.k_cache = k.tensor();
    arguments.v_cache = v.tensor();
    arguments.block_table = table.tensor();
    arguments.indexer_block_ids = ids.tensor();
    arguments.token_to_request = requests.tensor();
    arguments.query_positions = positions.tensor();
    arguments.qo_indptr = indptr.tensor();
    arguments.output_gate = gate.tensor();
    if (sm_scale.given()) arguments.sm_scale = sm_scale.scalar();
    arguments.v_scale = v_scale.scalar();
  }

  TensorArgument q, k, v, table, ids, requests, positions, indptr, gate;
  ScalarArgument sm_scale, v_scale;
  Framework framework;
  QsaArguments arguments;
};

/// Hands outputs and options, as Python gives them, to `call(arguments, options)`.
template <class Call>
nb::tuple run(const QsaConfig& config, std::size_t workspace_size, const Call& call, QsaInputs& in, nb::handle out,
              nb::handle lse, nb::handle workspace, nb::handle stream, nb::handle path, nb::handle unchecked,
              nb::handle check_indices) {
  QsaArguments& a = in.arguments;
  const Device device = config.device;
  const int rank = a.q.rank;
  const bool known = rank == 3 || rank == 5;
  const auto shape = std::span<const std::int64_t>(a.q.shape).first(known ? static_cast<std::size_t>(rank) : 0);
  const auto row_shape = shape.first(known ? shape.size() - 1 : 0);
  const OutputArgument out_arg(out, "out", in.framework, config.out_dtype, shape, device),
      lse_arg(lse, "lse", in.framework, DType::f32, row_shape, device);
  a.out = out_arg.tensor();
  a.lse = lse_arg.tensor();
  CallOptions options = call_options(in.framework, device, stream, path, config.num_threads, unchecked, check_indices);
  const WorkspaceArgument scratch(workspace, workspace.is_none() ? workspace_size : 0, in.framework, device);
  options.workspace = scratch.workspace();
  {
    const nb::gil_scoped_release release;
    call(a, options);
  }
  return nb::make_tuple(out_arg.object(), lse_arg.object());
}

nb::tuple plan_run(const QsaPlan& plan, const nb::tuple& arguments) {
  const auto [q, k_cache, v_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr,
              sm_scale, v_scale, output_gate, out, lse, workspace, stream, path, unchecked, check_indices] =
      unpack<18>(arguments);
  QsaInputs in(q, k_cache, v_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr,
               sm_scale, v_scale, output_gate);
  const auto call = [&](const QsaArguments& a, const CallOptions& options) { plan.run(a, options); };
  return run(plan.config(), plan.workspace_bytes(), call, in, out, lse, workspace, stream, path, unchecked,
             check_indices);
}

nb::tuple eager(const nb::tuple& arguments) {
  const auto [q, k_cache, v_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr,
              kv_block_size, seq_len_q, max_seq_len_kv, out_dtype, sm_scale, v_scale, output_gate, out, lse, workspace,
              stream, path, num_threads, unchecked, check_indices] = unpack<23>(arguments);
  QsaInputs in(q, k_cache, v_cache, block_table, indexer_block_ids, token_to_request, query_positions, qo_indptr,
               sm_scale, v_scale, output_gate);
  CallOptions options;
  options.num_threads = thread_count(num_threads);
  QsaConfig config =
      qsa_config(in.arguments, integer(kv_block_size, "kv_block_size"), integer(seq_len_q, "seq_len_q"), options);
  if (!out_dtype.is_none()) {
    config.out_dtype = dtype_from_name(text(out_dtype, "out_dtype"));
  } else if (out.ptr() != Py_True && !out.is_none()) {
    config.out_dtype = TensorArgument(out, "out", Access::write).tensor().dtype;
  } else {
    config.out_dtype = in.arguments.q.dtype == DType::f8_e4m3 ? DType::bf16 : in.arguments.q.dtype;
  }
  config.max_seq_len_kv = integer_or(max_seq_len_kv, "max_seq_len_kv", config.max_seq_len_kv);
  const std::size_t workspace_size = workspace_bytes(config);
  const auto call = [&](const QsaArguments& a, const CallOptions& call_options) {
    run_qsa(config, workspace_size, a, call_options);
  };
  return run(config, workspace_size, call, in, out, lse, workspace, stream, path, unchecked, check_indices);
}

QsaPlan make_plan(nb::handle batch_size, nb::handle seq_len_q, nb::handle num_qo_heads, nb::handle num_kv_heads,
                  nb::handle head_dim, nb::handle kv_block_size, nb::handle page_size, nb::handle block_topk,
                  nb::handle max_seq_len_kv, nb::handle use_packed_q, nb::handle share_pattern_across_kv_heads,
                  std::string_view q_dtype, std::string_view kv_dtype, std::string_view out_dtype,
                  std::string_view device, nb::handle num_threads) {
  QsaConfig config;
  config.device = device_from_name(device);
  config.batch_size = integer(batch_size, "batch_size");
  config.seq_len_q = integer(seq_len_q, "seq_len_q");
  config.num_qo_heads = integer(num_qo_heads, "num_qo_heads");
  config.num_kv_heads = integer(num_kv_heads, "num_kv_heads");
  config.head_dim = integer(head_dim, "head_dim");
  config.kv_block_size = integer(kv_block_size, "kv_block_size");
  config.page_size = integer(page_size, "page_size");
  config.block_topk = integer(block_topk, "block_topk");
  config.max_seq_len_kv = integer(max_seq_len_kv, "max_seq_len_kv");
  config.use_packed_q = flag(use_packed_q, "use_packed_q");
  config.share_pattern_across_kv_heads = flag(share_pattern_across_kv_heads, "share_pattern_across_kv_heads");
  config.q_dtype = dtype_from_name(q_dtype);
  config.kv_dtype = dtype_from_name(kv_dtype);
  config.out_dtype = dtype_from_name(out_dtype);
  config.num_threads = thread_count(num_threads);
  return QsaPlan(config);
}

}  // namespace

void bind_qsa(nb::module_& m) {
  nb::class_<QsaPlan>(m, "QsaPlan")
      .def_prop_ro("workspace_size", [](const QsaPlan& plan) { return plan.workspace_bytes(); })
      .def("run", &plan_run);
  m.def("qsa_plan", &make_plan);
  m.def("qsa", &eager);
  m.def("suggest_group_size", [](nb::handle batch_size, nb::handle rows_per_request, nb::handle num_qo_heads,
                                 nb::handle num_kv_heads, nb::handle num_processors) {
    return suggest_group_size(integer(batch_size, "batch_size"), integer(rows_per_request, "rows_per_request"),
                              integer(num_qo_heads, "num_qo_heads"), integer(num_kv_heads, "num_kv_heads"),
                              integer(num_processors, "num_processors"));
  });
}

}  // namespace kvsieve::python
