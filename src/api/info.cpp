// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/info.hpp"

#include "attend/cpu/kernel.hpp"
#include "core/thread_pool.hpp"
#if KVSIEVE_HAS_CUDA
#include "cuda/device.hpp"
#endif

namespace kvsieve {

const char* version() noexcept { return KVSIEVE_VERSION; }

namespace {

/// CUDA devices, and what the CUDA paths would run on.
void add_cuda(Info& result) {
#if KVSIEVE_HAS_CUDA
  const cuda::Devices& devices = cuda::devices();
  std::string usable;
  std::string hopper;
  for (std::size_t i = 0; i < devices.properties.size(); ++i) {
    const cuda::DeviceProperties& d = devices.properties[i];
    const std::string name = "cuda:" + std::to_string(i) + " (" + d.name + ", compute capability " +
                             std::to_string(d.major) + "." + std::to_string(d.minor) + ", " +
                             std::to_string(d.num_processors) + " SMs)";
    result.devices.push_back(name);
    if (d.major == 9) hopper += (hopper.empty() ? "" : ", ") + name;
    if (d.major >= 8) usable += (usable.empty() ? "" : ", ") + name;
  }
  const std::string missing =
      devices.problem.empty() ? "no device of compute capability 8.0 or later" : devices.problem;
  result.paths.push_back({Path::cuda_portable, !usable.empty(), usable.empty() ? missing : usable});
  result.paths.push_back(
      {Path::cuda_sm90, !hopper.empty(), hopper.empty() ? "no device of compute capability 9.0" : hopper});
#else
  result.paths.push_back({Path::cuda_portable, false, "this build has no CUDA backend"});
  result.paths.push_back({Path::cuda_sm90, false, "this build has no CUDA backend"});
#endif
}

}  // namespace

Info info() {
  Info result;
  result.version = version();
  result.simd_target = cpu::simd_target();
  result.bf16_dot = cpu::has_bf16_dot();
  result.num_threads = ThreadPool::instance().size();
  result.devices = {"cpu (" + std::to_string(result.num_threads) + " cores)"};
  std::string cpu_detail = result.simd_target;
  if (result.bf16_dot) cpu_detail += " with BF16 dot products";
  cpu_detail += ", " + std::to_string(result.num_threads) + (result.num_threads == 1 ? " thread" : " threads");
  result.paths = {{Path::reference, true, "float64, one thread, CPU tensors"}, {Path::cpu, true, cpu_detail}};
  add_cuda(result);
  return result;
}

}  // namespace kvsieve
