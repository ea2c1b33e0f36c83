// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/merge.hpp"

#include <cstdint>
#include <string>

#include "api/dispatch.hpp"
#include "api/validate.hpp"
#include "combine/combine.hpp"
#include "kvsieve/error.hpp"
#include "reference/reference.hpp"
#if KVSIEVE_HAS_CUDA
#include "combine/combine_cuda.hpp"
#include "cuda/device.hpp"
#endif

namespace kvsieve {
namespace {

States states_of(const MergeArguments& a) {
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
  return states;
}

void merge(const MergeArguments& a, const CallOptions& options) {
  const States states = states_of(a);
  const RowHeads out = row_heads(a.out, a.out.stride[0], 1);
  const RowHeads lse = row_heads(a.lse, a.lse.stride[0], 1);
  const MergeShape shape{a.out.shape[0], a.out.shape[1], a.out.shape[2]};
#if KVSIEVE_HAS_CUDA
  if (a.outs.device.type == DeviceType::cuda) {
    if (shape.num_heads > 0 && shape.num_rows > INT32_MAX / shape.num_heads) {  // a thread block each
      throw UnsupportedError("CUDA: " + std::to_string(shape.num_rows) + " rows of " + std::to_string(shape.num_heads) +
                             " heads are more than one launch takes");
    }
    const cuda::DeviceGuard guard(a.outs.device.index);
    cuda::CombineParameters parameters;
    parameters.states = states;
    parameters.shape = shape;
    parameters.problem.out = out;
    parameters.problem.lse = lse;
    cuda::combine(parameters, static_cast<cudaStream_t>(options.stream));
    return;
  }
#endif
  merge_states_on_cpu(states, out, lse, shape, options.num_threads);
}

}  // namespace

void merge_states(const MergeArguments& arguments, const CallOptions& options) {
  const Path path = choose_path(arguments.outs.device, options);
  if (!options.unchecked) validate_merge(arguments, options);
  if (path == Path::reference) {
    reference::merge(arguments);
  } else {
    merge(arguments, options);
  }
}

}  // namespace kvsieve
