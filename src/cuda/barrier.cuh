// SPDX-License-Identifier: Apache-2.0
//
// Shared-memory barriers (mbarrier) of a producer-consumer pipeline, and what goes with them on Hopper.
#pragma once

#include <cstdint>

namespace kvsieve::cuda {

/// An mbarrier in shared memory, by its address.
struct Barrier {
  std::uint32_t address;

  __device__ __forceinline__ void init(std::uint32_t arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
  }
  /// Releases what this thread wrote to those that wait.
  __device__ __forceinline__ void arrive() const {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }
  /// Arrives when all asynchronous copies that this thread has started are complete.
  __device__ __forceinline__ void arrive_after_copies() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
  }
  /// True when the phase of this parity has completed.
  __device__ __forceinline__ bool try_wait(std::uint32_t parity) const {
    std::uint32_t done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
    return done != 0;
  }
  __device__ __forceinline__ void wait(std::uint32_t parity) const {
    while (!try_wait(parity)) {
    }
  }
};

/// Makes the initialised barriers visible, before the thread block's first __syncthreads.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Orders ordinary shared-memory writes that this thread has made or waited for before reads by the tensor cores. Where
/// copies are in flight it waits for them, so it is for those who wait for data, not for those who bring it.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// A barrier among `threads` threads (whole warps) that share `id`, 1..15.
__device__ __forceinline__ void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Registers of each thread of the calling warpgroup, from here on.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits for the kernels that this one was launched to overlap with, and for their writes. Nothing to wait for
/// otherwise.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the kernel that depends on this one start, once every thread block has said so or ended.
__device__ __forceinline__ void launch_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kvsieve::cuda
