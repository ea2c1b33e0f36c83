// SPDX-License-Identifier: Apache-2.0
//
// SIMD kernel of the CPU backend, compiled once per instruction set (Google Highway) and chosen at run time.
//
// Vectors run along query rows: lane r of a tile is (token r / group, head r % group). Then the logits of one key are a
// vector over rows, the softmax has no horizontal step, and both matrix products are the same kernel (product-inl.h),
// which broadcasts words of K or V. Tiles of few lanes multiply along the head dim instead (few_lanes-inl.h).
// docs/kernels/cpu.md draws the layouts.

#include "attend/cpu/kernel.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "attend/cpu/scratch.hpp"
#include "core/numeric.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/cpu/kernel.cpp"
#define HWY_WANT_AVX3_DL  // the instruction sets with BF16 dot products are newer than it
// The layouts assume at most 16 lanes and a vector length known at compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
using IntTag = hn::Rebind<std::int32_t, FloatTag>;
using UintTag = hn::Rebind<std::uint32_t, FloatTag>;
using HalfBitsTag = hn::Rebind<std::uint16_t, FloatTag>;
using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;
using UintVec = hn::Vec<UintTag>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));

// Hardware float16 conversions; elsewhere Highway's emulation is not exact for every value, the scalar code is.
#undef KVSIEVE_HAS_F16
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
#define KVSIEVE_HAS_F16 1
#else
#define KVSIEVE_HAS_F16 0
#endif

#include "attend/cpu/convert-inl.h"

// Arithmetic of the matrix products.

namespace f32 {
HWY_INLINE FloatVec Dot(FloatVec acc, FloatVec a, FloatVec b) { return hn::MulAdd(a, b, acc); }
#include "attend/cpu/product-inl.h"
}  // namespace f32

// GCC adds the target of the pragma to that of the enclosing region; clang replaces it, so clang builds do without.
#undef KVSIEVE_BF16_KERNEL
#if HWY_TARGET == HWY_AVX3_DL && defined(__GNUC__) && !defined(__clang__)
#define KVSIEVE_BF16_KERNEL 1
#pragma GCC push_options
#pragma GCC target("avx512bf16")
namespace bf16 {
HWY_INLINE FloatVec Dot(FloatVec acc, FloatVec a, FloatVec b) {
  return FloatVec{_mm512_dpbf16_ps(acc.raw, reinterpret_cast<__m512bh>(a.raw), reinterpret_cast<__m512bh>(b.raw))};
}
#include "attend/cpu/product-inl.h"
}  // namespace bf16
#pragma GCC pop_options
#else
#define KVSIEVE_BF16_KERNEL 0
#endif

/// float32 everywhere: a word of an operand is one number.
struct FloatMath {
  static constexpr bool pairs = false;
  template <int kVecs, int kCols, int kStep, bool kRescale>
  static void Product(size_t steps, const float* const* panels, const float* const* columns, const float* const* alpha,
                      float* const* out) {
    f32::PanelProduct<kVecs, kCols, kStep, kRescale>(steps, panels, columns, alpha, out);
  }
};

#if KVSIEVE_BF16_KERNEL
/// BF16 operands, float32 sums: a word is two numbers, which are neighbours along the summed dimension.
struct Bf16Math {
  static constexpr bool pairs = true;
  template <int kVecs, int kCols, int kStep, bool kRescale>
  static void Product(size_t steps, const float* const* panels, const float* const* columns, const float* const* alpha,
                      float* const* out) {
    bf16::PanelProduct<kVecs, kCols, kStep, kRescale>(steps, panels, columns, alpha, out);
  }
};
#endif

// The steps of a tile; each file uses those before it.
// clang-format off
#include "attend/cpu/tile-inl.h"
#include "attend/cpu/gather-inl.h"
#include "attend/cpu/products-inl.h"
#include "attend/cpu/few_lanes-inl.h"
#include "attend/cpu/softmax-inl.h"
#include "attend/cpu/results-inl.h"
// clang-format on

template <class Math, class Type>
void AttendTileAs(const TileTask& task) {
  Tile tile(task);
  const std::int64_t lanes = tile.num_rows * tile.group;
  tile.by_row = !Math::pairs && lanes <= few_lanes && lanes % kLanes != 0;
  InitLanes(tile);
  PackQueries<Math>(tile);
  RouteCursor cursor{task.entry_begin};
  Chunk* current = tile.scratch.chunks;
  Chunk* next = tile.scratch.chunks + 1;
  const auto row_bytes = tile.head_dim * static_cast<std::int64_t>(sizeof(typename Type::Storage));
  FillChunk(tile, cursor, *current);
  Prefetcher(*current, row_bytes, 1).advance(1);
  while (current->num_keys > 0) {
    SelectChunk(tile, *current);
    FillChunk(tile, cursor, *next);
    Prefetcher prefetcher(*next, row_bytes, ProductWork(tile));
    if (tile.by_row) {
      LogitsByRow<Type>(tile, prefetcher);
    } else {
      Logits<Math, Type>(tile, prefetcher);
    }
    Softmax<Math>(tile);
    if (tile.by_row) {
      AddValuesByRow<Type>(tile, prefetcher);
    } else {
      GatherValues<Math, Type>(tile);
      if (tile.finite_values) {
        AddValues<Math>(tile, prefetcher);
      } else {
        AddValuesSkippingZeros<Math>(tile);
      }
    }
    std::swap(current, next);
  }
  FinishTile(tile);
}

void AttendTile(const TileTask& task, bool use_bf16_dot) {
  const DType kv = task.problem->kv_dtype;
#if KVSIEVE_BF16_KERNEL
  const DType q = task.problem->q.dtype;
  if (use_bf16_dot && (q == DType::bf16 || q == DType::f8_e4m3) && task.scalars.logit_scale != 0.0f) {
    if (kv == DType::bf16) return AttendTileAs<Bf16Math, Bf16>(task);
    if (kv == DType::f8_e4m3) return AttendTileAs<Bf16Math, F8>(task);
  }
#endif
  (void)use_bf16_dot;
  if (kv == DType::bf16) return AttendTileAs<FloatMath, Bf16>(task);
  if (kv == DType::f16) return AttendTileAs<FloatMath, F16>(task);
  return AttendTileAs<FloatMath, F8>(task);
}

bool HasBf16Kernel() { return KVSIEVE_BF16_KERNEL != 0; }
const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::cpu {

HWY_EXPORT(AttendTile);
HWY_EXPORT(StoreRow);
HWY_EXPORT(HasBf16Kernel);
HWY_EXPORT(TargetName);

namespace {

/// Whether BF16 dot products are there, and worth it. On Intel's server cores they are not: measured on Sapphire
/// Rapids, prefill took 1.45 times as long as with float32 multiply-adds (docs/kernels/cpu.md).
bool detect_bf16_dot() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (!HWY_DYNAMIC_DISPATCH(HasBf16Kernel)() || !__builtin_cpu_supports("avx512bf16")) return false;
  const char* setting = std::getenv("KVSIEVE_BF16_DOT");
  if (setting != nullptr && *setting != '\0') return std::strcmp(setting, "0") != 0;
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace

std::size_t scratch_bytes(std::int64_t lanes, std::int64_t head_dim) { return Scratch(nullptr, lanes, head_dim).bytes; }

void attend_tile(const TileTask& task) { HWY_DYNAMIC_DISPATCH(AttendTile)(task, has_bf16_dot()); }

void store_row(const AttentionProblem& problem, float v_scale, std::int64_t row, std::int64_t head, float* values) {
  HWY_DYNAMIC_DISPATCH(StoreRow)(problem, v_scale, row, head, values);
}

const char* simd_target() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

bool has_bf16_dot() {
  static const bool value = detect_bf16_dot();
  return value;
}

}  // namespace kvsieve::cpu
#endif  // HWY_ONCE
