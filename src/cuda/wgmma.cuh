// SPDX-License-Identifier: Apache-2.0
//
// Warpgroup matrix products of Hopper (compute capability 9.0a): d += a b with float32 accumulators, 64 rows a
// warpgroup. Lane l of warp w holds rows 16 w + l / 4 and + 8; element 4 n + j of d is column 8 n + 2 (l % 4) + j % 2
// of row (j / 2 ? second : first).
//
// Operands in shared memory are made of panels of 64 16-bit elements (128 bytes) a row, whose 16-byte units are
// swizzled: unit u of row r lies at u ^ (r & 7). Panels start at multiples of 1,024 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace kvsieve::cuda::wgmma {

/// Descriptor of a panel operand: its low word; the high word is the same for all. The address is a multiple of 16
/// bytes and moves within the operand by addition. `panel_bytes` is the distance between panels of an operand whose
/// rows are the product's inner dimension (V); it has no meaning for one whose columns are (Q and K).
struct Descriptor {
  std::uint32_t low;
  __device__ __forceinline__ explicit Descriptor(std::uint32_t shared_address, std::uint32_t panel_bytes = 16)
      : low((panel_bytes >> 4) << 16 | (shared_address & 0x3FFFF) >> 4) {}  // without the rank in a cluster
  __device__ __forceinline__ Descriptor plus(std::uint32_t bytes) const {
    Descriptor moved = *this;
    moved.low += bytes >> 4;
    return moved;
  }
};
/// 128-byte swizzle; 1,024 bytes from eight rows to the next eight.
#define KVSIEVE_DESCRIPTOR_HIGH "0x40000040"

/// Before the first product that reads registers or accumulators which other instructions wrote.
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `kPending` groups of products are in flight.
template <int kPending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The same in words that the compiler does not take for the same.
template <int kPending>
__device__ __forceinline__ void wait_again() {
  asm volatile("wgmma.wait_group.sync.aligned %0; // again" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses of accumulators across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// clang-format off
#define KVSIEVE_REGISTERS_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KVSIEVE_REGISTERS_32(d, i) KVSIEVE_REGISTERS_8(d, i), KVSIEVE_REGISTERS_8(d, i + 8), KVSIEVE_REGISTERS_8(d, i + 16), KVSIEVE_REGISTERS_8(d, i + 24)
#define KVSIEVE_REGISTERS_64(d, i) KVSIEVE_REGISTERS_32(d, i), KVSIEVE_REGISTERS_32(d, i + 32)
#define KVSIEVE_REGISTERS_128(d, i) KVSIEVE_REGISTERS_64(d, i), KVSIEVE_REGISTERS_64(d, i + 64)

#define KVSIEVE_WGMMA_SS_64(TYPE) \
  asm volatile("{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %34, 0; " \
      "mov.b64 da, {%32, " KVSIEVE_DESCRIPTOR_HIGH "}; mov.b64 db, {%33, " KVSIEVE_DESCRIPTOR_HIGH "}; " \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      "da, db, p, 1, 1, 0, 0; }" \
      : KVSIEVE_REGISTERS_32(d, 0) : "r"(a.low), "r"(b.low), "r"(accumulate ? 1 : 0) : "memory")
#define KVSIEVE_WGMMA_SS_128(TYPE) \
  asm volatile("{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %66, 0; " \
      "mov.b64 da, {%64, " KVSIEVE_DESCRIPTOR_HIGH "}; mov.b64 db, {%65, " KVSIEVE_DESCRIPTOR_HIGH "}; " \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "da, db, p, 1, 1, 0, 0; }" \
      : KVSIEVE_REGISTERS_64(d, 0) : "r"(a.low), "r"(b.low), "r"(accumulate ? 1 : 0) : "memory")
#define KVSIEVE_WGMMA_RS_64(TYPE) \
  asm volatile("{ .reg .pred p; .reg .b64 db; setp.ne.b32 p, 1, 0; " \
      "mov.b64 db, {%36, " KVSIEVE_DESCRIPTOR_HIGH "}; " \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      "{%32, %33, %34, %35}, db, p, 1, 1, 1; }" \
      : KVSIEVE_REGISTERS_32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low) : "memory")
#define KVSIEVE_WGMMA_RS_128(TYPE) \
  asm volatile("{ .reg .pred p; .reg .b64 db; setp.ne.b32 p, 1, 0; " \
      "mov.b64 db, {%68, " KVSIEVE_DESCRIPTOR_HIGH "}; " \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "{%64, %65, %66, %67}, db, p, 1, 1, 1; }" \
      : KVSIEVE_REGISTERS_64(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low) : "memory")
#define KVSIEVE_WGMMA_RS_256(TYPE) \
  asm volatile("{ .reg .pred p; .reg .b64 db; setp.ne.b32 p, 1, 0; " \
      "mov.b64 db, {%132, " KVSIEVE_DESCRIPTOR_HIGH "}; " \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
      "{%128, %129, %130, %131}, db, p, 1, 1, 1; }" \
      : KVSIEVE_REGISTERS_128(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low) : "memory")
// clang-format on

/// d (+)= a b for 64 x kColumns x 16: a and b in shared memory, both with the inner dimension along their rows.
template <class T, int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], Descriptor a, Descriptor b, bool accumulate) {
  static_assert(kCount == 32 || kCount == 64);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kCount == 32) {
      KVSIEVE_WGMMA_SS_64("bf16");
    } else {
      KVSIEVE_WGMMA_SS_128("bf16");
    }
  } else {
    if constexpr (kCount == 32) {
      KVSIEVE_WGMMA_SS_64("f16");
    } else {
      KVSIEVE_WGMMA_SS_128("f16");
    }
  }
}

/// d += a b for 64 x kColumns x 16: a in registers (mma.sync's layout of a 16 x 16 tile a warp), b in shared memory
/// with one row for each step of the inner dimension.
template <class T, int kCount>
__device__ __forceinline__ void multiply_registers(float (&d)[kCount], const std::uint32_t (&a)[4], Descriptor b) {
  static_assert(kCount == 32 || kCount == 64 || kCount == 128);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kCount == 32) {
      KVSIEVE_WGMMA_RS_64("bf16");
    } else if constexpr (kCount == 64) {
      KVSIEVE_WGMMA_RS_128("bf16");
    } else {
      KVSIEVE_WGMMA_RS_256("bf16");
    }
  } else {
    if constexpr (kCount == 32) {
      KVSIEVE_WGMMA_RS_64("f16");
    } else if constexpr (kCount == 64) {
      KVSIEVE_WGMMA_RS_128("f16");
    } else {
      KVSIEVE_WGMMA_RS_256("f16");
    }
  }
}

}  // namespace kvsieve::cuda::wgmma
