// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/msa.hpp"

#include <nanobind/stl/string_view.h>

#include "call_options.hpp"
#include "calls.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

nb::tuple msa(const nb::tuple& arguments) {
  const auto [decode, q, k, v, q2k_indices, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, q_offset, seqlen_q,
              causal, softmax_scale, k_global_scale, v_global_scale, valid_prefix, block_size, out, lse, lse_t,
              lse_temperature_scale, workspace, stream, path, num_threads, unchecked, check_indices] =
      unpack<27>(arguments);
  const TensorArgument q_in(q, "q"), k_in(k, "k"), v_in(v, "v"), ids_in(q2k_indices, "q2k_indices"),
      cu_q_in(cu_seqlens_q, "cu_seqlens_q"), cu_k_in(cu_seqlens_k, "cu_seqlens_k"), table_in(page_table, "page_table"),
      lengths_in(seqused_k, "seqused_k"), offset_in(q_offset, "q_offset");
  const ScalarArgument k_scale(k_global_scale, "k_global_scale", 1.0f), v_scale(v_global_scale, "v_global_scale", 1.0f);

  MsaArguments a;
  a.q = q_in.tensor();
  a.k = k_in.tensor();
  a.v = v_in.tensor();
  a.q2k_indices = ids_in.tensor();
  a.cu_seqlens_q = cu_q_in.tensor();
  a.cu_seqlens_k = cu_k_in.tensor();
  a.page_table = table_in.tensor();
  a.seqused_k = lengths_in.tensor();
  a.q_offset = offset_in.tensor();
  a.seqlen_q = integer(seqlen_q, "seqlen_q");
  a.causal = flag(causal, "causal");
  if (!softmax_scale.is_none()) a.softmax_scale = number(softmax_scale, "softmax_scale");
  a.k_global_scale = k_scale.scalar();
  a.v_global_scale = v_scale.scalar();
  a.valid_prefix = flag(valid_prefix, "valid_prefix");
  a.block_size = integer(block_size, "block_size");
  a.lse_temperature_scale = number(lse_temperature_scale, "lse_temperature_scale");

  const Framework framework(q);
  const Device device = a.q.device;
  const std::span<const std::int64_t> shape = std::span(a.q.shape).first(a.q.rank == 3 ? 3 : 0);
  const std::span<const std::int64_t> row_shape = shape.first(shape.empty() ? 0 : 2);
  const OutputArgument out_arg(out, "out", framework, a.q.dtype, shape, device),
      lse_arg(lse, "lse", framework, DType::f32, row_shape, device),
      lse_t_arg(lse_t, "lse_t", framework, DType::f32, row_shape, device);
  a.out = out_arg.tensor();
  a.lse = lse_arg.tensor();
  a.lse_t = lse_t_arg.tensor();

  CallOptions options =
      call_options(framework, device, stream, path, thread_count(num_threads), unchecked, check_indices);
  const std::size_t required =
      workspace.is_none() ? workspace_or_zero([&] { return workspace_bytes(msa_config(a, options)); }) : 0;
  const WorkspaceArgument scratch(workspace, required, framework, device);
  options.workspace = scratch.workspace();
  const bool is_decode = flag(decode, "decode");
  {
    const nb::gil_scoped_release release;
    if (is_decode) {
      msa_sparse_decode_attention(a, options);
    } else {
      msa_sparse_attention(a, options);
    }
  }
  return nb::make_tuple(out_arg.object(), lse_arg.object(), lse_t_arg.object());
}

std::size_t msa_workspace_size(nb::handle total_q, nb::handle num_qo_heads, nb::handle num_kv_heads,
                               nb::handle head_dim, nb::handle topk, nb::handle block_size, std::string_view q_dtype,
                               std::string_view kv_dtype, std::string_view device, nb::handle num_threads) {
  MsaConfig config;
  config.device = device_from_name(device);
  config.total_q = integer(total_q, "total_q");
  config.num_qo_heads = integer(num_qo_heads, "num_qo_heads");
  config.num_kv_heads = integer(num_kv_heads, "num_kv_heads");
  config.head_dim = integer(head_dim, "head_dim");
  config.topk = integer(topk, "topk");
  config.block_size = integer(block_size, "block_size");
  config.q_dtype = dtype_from_name(q_dtype);
  config.kv_dtype = dtype_from_name(kv_dtype);
  config.num_threads = thread_count(num_threads);
  return workspace_bytes(config);
}

}  // namespace

void bind_msa(nb::module_& m) {
  m.def("msa", &msa);
  m.def("msa_workspace_size", &msa_workspace_size);
}

}  // namespace kvsieve::python
