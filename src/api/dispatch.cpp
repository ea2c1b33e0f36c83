// SPDX-License-Identifier: Apache-2.0
#include "api/dispatch.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "attend/cpu/attend_cpu.hpp"
#include "kvsieve/error.hpp"
#include "route/row_map.hpp"
#if KVSIEVE_HAS_CUDA
#include "attend/cuda/attend_cuda.hpp"
#include "cuda/device.hpp"
#endif

namespace kvsieve {
namespace {

/// Debug only: one thread.
std::int64_t count_bad_indices(const AttentionProblem& problem) {
  std::int64_t bad = 0;
  for (std::int64_t request = 0; request < problem.num_requests; ++request) {
    bad += bad_indices_of_request(problem, request);
  }
  for (std::int64_t row = 0; row < problem.total_q; ++row) bad += bad_indices_of_row(problem, row);
  return bad;
}

/// KVSIEVE_PATH, read once. A wrong name is reported at every call that it would decide.
Path path_from_environment() {
  static const char* const name = std::getenv("KVSIEVE_PATH");
  return name == nullptr || *name == '\0' ? Path::automatic : path_from_name(name);
}

/// Throws UnsupportedError unless this build and machine have a CUDA path for the device.
void require_cuda(Device device) {
#if KVSIEVE_HAS_CUDA
  cuda::device_properties(device.index);
#else
  throw UnsupportedError("no path for tensors on " + to_string(device) + ": this build of kvsieve has no CUDA backend");
#endif
}

}  // namespace

Path choose_path(Device device, const CallOptions& options) {
  const Path forced = options.path != Path::automatic ? options.path : path_from_environment();
  const bool forced_cuda = forced == Path::cuda_portable || forced == Path::cuda_sm90;
  if (device.type == DeviceType::cuda) {
    if (forced == Path::automatic || forced_cuda) {
      require_cuda(device);
      return forced;
    }
    throw UnsupportedError("path " + std::string(path_name(forced)) + " does not take tensors on " + to_string(device));
  }
  if (forced_cuda) {
    throw UnsupportedError("path " + std::string(path_name(forced)) + " does not take tensors on cpu");
  }
  return forced == Path::automatic ? Path::cpu : forced;
}

Path resolve_path(const AttentionProblem& problem, Device device, Path chosen) {
#if KVSIEVE_HAS_CUDA
  if (device.type == DeviceType::cuda && chosen != Path::cuda_portable) {
    const std::string refusal = cuda::sm90_refusal(problem, device.index);
    if (refusal.empty()) return Path::cuda_sm90;
    if (chosen == Path::cuda_sm90) throw UnsupportedError("path cuda_sm90 does not take this call: " + refusal);
    return Path::cuda_portable;
  }
#else
  (void)problem;
  (void)device;
#endif
  return chosen;
}

void require_sizes(Device device, const Shape& shape) {
  if (device.type != DeviceType::cuda) return;
  require_cuda(device);
#if KVSIEVE_HAS_CUDA
  cuda::check_sizes(shape);
#else
  (void)shape;
#endif
}

std::size_t attention_workspace_bytes(Device device, const Shape& shape) {
  constexpr std::int64_t most = INT32_MAX;
  const bool possible = shape.total_q > 0 && shape.total_q <= most && shape.num_kv_heads > 0 &&
                        shape.num_qo_heads >= shape.num_kv_heads && shape.num_qo_heads <= most &&
                        shape.num_qo_heads / shape.num_kv_heads <= max_group && shape.head_dim > 0 &&
                        shape.head_dim <= max_head_dim && shape.topk >= 0 && shape.topk <= most &&
                        shape.num_threads >= 0;
  if (!possible) return 0;
#if KVSIEVE_HAS_CUDA
  if (device.type == DeviceType::cuda) return cuda::workspace_bytes(shape, device.index);
#else
  (void)device;
#endif
  return cpu::workspace_bytes(shape);
}

void run_attention(const AttentionProblem& problem, Device device, Path path, const CallOptions& options) {
#if KVSIEVE_HAS_CUDA
  if (device.type == DeviceType::cuda) {
    const bool hopper = resolve_path(problem, device, path) == Path::cuda_sm90;
    report_bad_indices(
        cuda::attend(problem, device.index, hopper, options.workspace.data, options.stream, options.check_indices));
    return;
  }
#else
  (void)device;
  (void)path;
#endif
  cpu::attend(problem, options.num_threads, options.workspace.data);
  if (options.check_indices) report_bad_indices(count_bad_indices(problem));
}

void report_bad_indices(std::int64_t bad_entries) {
  if (bad_entries == 0) return;
  throw IndexError(std::to_string(bad_entries) + " index entries are out of range; they were skipped", bad_entries);
}

ScalarSource scalar_source(const Scalar& scalar) {
  if (const float* value = std::get_if<float>(&scalar)) return {nullptr, *value};
  return {static_cast<const float*>(std::get<Tensor>(scalar).data), 0.0f};
}

RowHeads row_heads(const Tensor& tensor, std::int64_t stride_row, int head_dimension) {
  if (!tensor.defined()) return {};
  return {tensor.data, tensor.dtype, stride_row, tensor.stride[static_cast<std::size_t>(head_dimension)]};
}

}  // namespace kvsieve
