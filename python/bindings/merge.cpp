// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/merge.hpp"

#include <nanobind/stl/string_view.h>

#include "call_options.hpp"
#include "calls.hpp"

namespace nb = nanobind;

namespace kvsieve::python {
namespace {

nb::tuple merge(const nb::tuple& arguments) {
  const auto [outs, lses, out, lse, out_dtype, stream, path, num_threads, unchecked] = unpack<9>(arguments);
  const TensorArgument outs_in(outs, "outs"), lses_in(lses, "lses");
  MergeArguments a;
  a.outs = outs_in.tensor();
  a.lses = lses_in.tensor();
  const Framework framework(outs);
  const Device device = a.outs.device;
  const auto all = std::span<const std::int64_t>(a.outs.shape);
  const bool known = a.outs.rank == 4;
  const DType dtype = out_dtype.is_none() ? a.outs.dtype : dtype_from_name(text(out_dtype, "out_dtype"));
  const OutputArgument out_arg(out, "out", framework, dtype, all.subspan(1, known ? 3 : 0), device),
      lse_arg(lse, "lse", framework, DType::f32, all.subspan(1, known ? 2 : 0), device);
  a.out = out_arg.tensor();
  a.lse = lse_arg.tensor();
  const CallOptions options =
      call_options(framework, device, stream, path, thread_count(num_threads), unchecked, nb::handle(Py_False));
  {
    const nb::gil_scoped_release release;
    merge_states(a, options);
  }
  return nb::make_tuple(out_arg.object(), lse_arg.object());
}

}  // namespace

void bind_merge(nb::module_& m) { m.def("merge", &merge); }

}  // namespace kvsieve::python
