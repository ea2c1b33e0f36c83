// SPDX-License-Identifier: Apache-2.0
#include "kvsieve/info.hpp"

#include "attend/cpu/kernel.hpp"
#include "core/thread_pool.hpp"

namespace kvsieve {

const char* version() noexcept { return KVSIEVE_VERSION; }

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
  result.paths = {{Path::reference, true, "float64, one thread, CPU tensors"},
                  {Path::cpu, true, cpu_detail},
                  {Path::cuda_portable, false, "this build has no CUDA backend"},
                  {Path::cuda_sm90, false, "this build has no CUDA backend"}};
  return result;
}

}  // namespace kvsieve
