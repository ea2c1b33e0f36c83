// SPDX-License-Identifier: Apache-2.0
//
// Takes the place of the CPU backend's entry points: what the Hopper kernels take runs through the CUDA backend's host
// code and, in the emulator, its kernels; the rest on the CPU. So every test of the CPU path tests the kernels' logic.
// The workspace is as large as the backend says and ends at a protected page; a call is made twice, the emulator
// choosing anew who runs when, and has to give the same bits.

#define attend attend_on_the_cpu
#include "attend/cpu/attend_cpu.cpp"
#undef attend

#include <cstring>
#include <stdexcept>

#include "attend/cuda/attend_cuda.hpp"
#include "attend/cuda_portable/kernel.hpp"
#include "attend/cuda_sm90_decode/kernel.hpp"
#include "combine/combine_cuda.hpp"
#include "core/shape.hpp"
#include "cuda/device.hpp"
#include "emulator/calls.hpp"
#include "emulator/emulator.hpp"
#include "support/guarded_memory.hpp"

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

/// Asks each time: the next call may have another GPU.
decode::ActiveClusters decode::active_clusters(int device) { return ask_active_clusters(device); }

void launch_attend_d64(const AttendParameters&, TileShape, cudaStream_t) { emulator::fail("a portable kernel"); }
void launch_attend_d128(const AttendParameters&, TileShape, cudaStream_t) { emulator::fail("a portable kernel"); }
void launch_attend_d256(const AttendParameters&, TileShape, cudaStream_t) { emulator::fail("a portable kernel"); }
void combine(const CombineParameters&, cudaStream_t) { emulator::fail("combine of the portable kernels"); }
std::int64_t count_bad_indices(const AttentionProblem&, std::int64_t*, cudaStream_t) { return 0; }

}  // namespace kvsieve::cuda

namespace kvsieve::cpu {

namespace {

/// The bytes of out and lse, with each pair's row put to NaN when `spoil` says so.
std::vector<std::byte> outputs(const AttentionProblem& p, bool spoil) {
  std::vector<std::byte> bytes;
  const auto take = [&](const RowHeads& rows, std::int64_t row, std::int64_t head, std::int64_t elements) {
    if (!rows.defined()) return;
    const auto size = static_cast<std::int64_t>(dtype_size(rows.dtype));
    auto* const from = static_cast<std::byte*>(rows.data) + (row * rows.stride_row + head * rows.stride_head) * size;
    bytes.insert(bytes.end(), from, from + elements * size);
    if (spoil) std::memset(from, 0xFF, static_cast<std::size_t>(elements * size));
  };
  for (std::int64_t row = 0; row < p.total_q; ++row) {
    for (std::int64_t head = 0; head < p.num_qo_heads; ++head) {
      take(p.out, row, head, p.head_dim);
      take(p.lse, row, head, 1);
    }
  }
  return bytes;
}

}  // namespace

void attend(const AttentionProblem& problem, int num_threads, void* workspace) {
  if (!cuda::sm90_refusal(problem, 0).empty()) {
    ++emulator::calls_elsewhere;
    return attend_on_the_cpu(problem, num_threads, workspace);
  }
  test::GuardedMemory memory(test::Guard::after);
  void* const own_workspace = memory.allocate(cuda::workspace_bytes(shape_of(problem, 0), 0));
  cuda::attend(problem, 0, true, own_workspace, nullptr, false);
  const std::vector<std::byte> first = outputs(problem, true);
  cuda::attend(problem, 0, true, own_workspace, nullptr, false);
  if (outputs(problem, false) != first) throw std::runtime_error("a call made twice gives two results");
}

}  // namespace kvsieve::cpu
