// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/merge.hpp"

#include "api/dispatch.hpp"
#include "api/validate.hpp"
#include "combine/combine.hpp"
#include "reference/reference.hpp"

namespace kvsieve {
namespace {

void merge_on_cpu(const MergeArguments& a, const CallOptions& options) {
  States states;
  states.out = a.outs.data;
  states.out_dtype = a.outs.dtype;
  states.out_stride_state = a.outs.stride[0];
  states.out_stride_row = a.outs.stride[1];
  states.out_stride_head = a.outs.stride[2];
  states.lse = static_cast<const float*>(a.lses.data);
  states.lse_stride_state = a.lses.stride[0];
  states.lse_stride_row = a.lses.stride[1];
  states.lse_stride_head = a.lses.stride[2];
  states.num_states = a.outs.shape[0];
  merge_states_on_cpu(states, row_heads(a.out, a.out.stride[0], 1), row_heads(a.lse, a.lse.stride[0], 1),
                      {a.out.shape[0], a.out.shape[1], a.out.shape[2]}, options.num_threads);
}

}  // namespace

void merge_states(const MergeArguments& arguments, const CallOptions& options) {
  const Path path = choose_path(arguments.outs.device, options);
  if (!options.unchecked) validate_merge(arguments, options);
  if (path == Path::reference) {
    reference::merge(arguments);
  } else {
    merge_on_cpu(arguments, options);
  }
}

}  // namespace kvsieve
