// SPDX-License-Identifier: Apache-2.0
//
// Takes the place of the CPU backend's entry points: what the Hopper kernel takes runs through the CUDA backend's host
// code and, in the emulator, its kernels; the rest on the CPU. So every test of the CPU path tests the kernels' logic.

#define attend attend_on_the_cpu
#define workspace_bytes cpu_workspace_bytes
#include "attend/cpu/attend_cpu.cpp"
#undef attend
#undef workspace_bytes

#include "attend/cuda/attend_cuda.hpp"
#include "attend/cuda_portable/kernel.hpp"
#include "combine/combine_cuda.hpp"
#include "cuda/device.hpp"
#include "emulator/calls.hpp"
#include "emulator/emulator.hpp"

namespace kvsieve::cuda {

namespace {
DeviceProperties emulated_properties{"emulated GPU", 9, 0, 0, 227 * 1024};
}

const DeviceProperties& device_properties(int) {
  emulated_properties.num_processors = emulator::num_processors;
  return emulated_properties;
}
DeviceGuard::DeviceGuard(int) {}
DeviceGuard::~DeviceGuard() = default;

void launch_attend_d64(const AttendParameters&, TileShape, cudaStream_t) { emulator::fail("a portable kernel"); }
void launch_attend_d128(const AttendParameters&, TileShape, cudaStream_t) { emulator::fail("a portable kernel"); }
void launch_attend_d256(const AttendParameters&, TileShape, cudaStream_t) { emulator::fail("a portable kernel"); }
void combine(const CombineParameters&, cudaStream_t) { emulator::fail("combine of the portable kernels"); }
std::int64_t count_bad_indices(const AttentionProblem&, std::int64_t*, cudaStream_t) { return 0; }

}  // namespace kvsieve::cuda

namespace kvsieve::cpu {

std::size_t workspace_bytes(const Shape& shape) {
  return std::max(cpu_workspace_bytes(shape), cuda::workspace_bytes(shape, 0));
}

void attend(const AttentionProblem& problem, int num_threads, void* workspace) {
  // The number of processors decides between persistent thread blocks and clusters: both, in turns.
  static std::uint64_t calls = 0;
  constexpr int processors[] = {2, 8, 132, 32};
  emulator::num_processors = processors[calls++ % 4];
  if (!cuda::sm90_refusal(problem, 0).empty()) {
    ++emulator::calls_elsewhere;
    return attend_on_the_cpu(problem, num_threads, workspace);
  }
  ++emulator::calls_emulated;
  cuda::attend(problem, 0, true, workspace, nullptr, false);
}

}  // namespace kvsieve::cpu
