// SPDX-License-Identifier: Apache-2.0
//
// SIMD kernel of the CPU backend, compiled once per instruction set (Google Highway) and chosen at run time.
//
// Vectors run along query rows: lane r of a tile is (token r / group, head r % group). Then the logits of one key are a
// vector over rows, the softmax has no horizontal step, and both matrix products are the same kernel (product-inl.h),
// which broadcasts words of K or V. docs/kernels/cpu.md draws the layouts.

#include "attend/cpu/kernel.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/numeric.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/cpu/kernel.cpp"
#define HWY_WANT_AVX3_DL  // the instruction sets with BF16 dot products are newer than it
// The layouts assume at most 16 lanes and a vector length known at compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVSIEVE_ATTEND_CPU_SCRATCH
#define KVSIEVE_ATTEND_CPU_SCRATCH
namespace kvsieve::cpu {

/// Keys processed at a time: their float copies of K and V (2 * 64 KiB) stay in the L2 cache.
inline std::int64_t chunk_keys(std::int64_t head_dim) { return head_dim > 128 ? 64 : 128; }

/// Words between two panels of V: one line more than a panel, so that the 16 parts of a row do not all fall into the
/// same set of the L1 cache.
inline std::int64_t value_panel_words(std::int64_t keys_or_pairs) { return keys_or_pairs * 16 + 16; }

/// Keys of a chunk at most.
inline constexpr std::int64_t max_chunk_keys = 128;

/// Consecutive keys of one block within a chunk.
struct Piece {
  std::int32_t first_key;  ///< index in the chunk
  std::int32_t num_keys;
  std::int32_t block;
  std::int32_t offset;    ///< of the first key within the block
  std::uint32_t members;  ///< rows that selected the block
  bool masked;            ///< some row of the tile does not attend to some key of the piece
};

/// The keys that one step of the online softmax works on.
struct Chunk {
  std::int64_t num_keys;
  std::int64_t num_pieces;
  std::uint32_t rows;  ///< rows of the tile that attend to some key
  Piece pieces[max_chunk_keys];
  const char* k_rows[max_chunk_keys];  ///< where each key is in the cache
  const char* v_rows[max_chunk_keys];
};

/// Bump allocator over the scratch memory; the same code computes its size.
class ScratchCursor {
 public:
  explicit ScratchCursor(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    char* place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(place);
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

/// A tile's working set. "panel" arrays are [vector][...][lanes]: vector v holds lanes v * L .. v * L + L - 1.
struct Scratch {
  float* q;                    ///< [vector][D][lanes], or words of bf16 pairs [vector][D / 2][lanes]
  float* o;                    ///< [vector][D][lanes], not normalised
  float* s;                    ///< [vector][chunk][lanes]: logits, then probabilities
  float* k;                    ///< [chunk][D] floats, or [chunk][D / 2] words
  float* v;                    ///< [D / 16][chunk][16] floats, or [D / 16][chunk / 2][16] words
  float* max;                  ///< [lane]: running maximum of the unscaled logits
  float* sum;                  ///< [lane]: running sum of exp(logit - max)
  float* sum_t;                ///< [lane]: the same for lse_t
  float* alpha;                ///< [lane]: factor that moves older sums to the new maximum
  std::int32_t* limit_block;   ///< [lane]: block of the last position that the lane attends to
  std::int32_t* limit_offset;  ///< [lane]: offset of that position within the block
  std::uint32_t* token_bit;    ///< [lane]: membership bit of the lane's token
  float* row;                  ///< [D]: an output row
  Chunk* chunks;               ///< [2]: the current one, and the one after it
  std::size_t bytes;

  Scratch(void* memory, std::int64_t lanes, std::int64_t head_dim) {
    const std::int64_t padded = (lanes + 15) / 16 * 16;
    const std::int64_t chunk = chunk_keys(head_dim);
    ScratchCursor cursor(memory);
    q = cursor.take<float>(padded * head_dim);
    o = cursor.take<float>(padded * head_dim);
    s = cursor.take<float>(padded * chunk);
    k = cursor.take<float>(chunk * head_dim);
    v = cursor.take<float>(value_panel_words(chunk) * (head_dim / 16));
    max = cursor.take<float>(padded);
    sum = cursor.take<float>(padded);
    sum_t = cursor.take<float>(padded);
    alpha = cursor.take<float>(padded);
    limit_block = cursor.take<std::int32_t>(padded);
    limit_offset = cursor.take<std::int32_t>(padded);
    token_bit = cursor.take<std::uint32_t>(padded);
    row = cursor.take<float>(head_dim);
    chunks = cursor.take<Chunk>(2);
    bytes = cursor.used();
  }
};

}  // namespace kvsieve::cpu
#endif  // KVSIEVE_ATTEND_CPU_SCRATCH

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

// ---- Storage types

struct Bf16 {
  static constexpr DType dtype = DType::bf16;
  using Storage = std::uint16_t;
};
struct F16 {
  static constexpr DType dtype = DType::f16;
  using Storage = std::uint16_t;
};
struct F8 {
  static constexpr DType dtype = DType::f8_e4m3;
  using Storage = std::uint8_t;
};

HWY_INLINE FloatVec LoadFloats(Bf16, const std::uint16_t* HWY_RESTRICT from) {
  const UintTag du;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(HalfBitsTag(), from))));
}

HWY_INLINE FloatVec LoadFloats(F16, const std::uint16_t* HWY_RESTRICT from) {
#if KVSIEVE_HAS_F16
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  return hn::PromoteTo(FloatTag(), hn::BitCast(dh, hn::LoadU(HalfBitsTag(), from)));
#else
  alignas(64) float values[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) values[i] = f16_to_float(from[i]);
  return hn::Load(FloatTag(), values);
#endif
}

/// FP8 E4M3 bits, moved 20 places up, are a float whose exponent is 120 too small; the multiplication by 2^120 is
/// exact. Subnormals (exponent field 0) would be subnormal floats, slow on some CPUs: they are converted as integers
/// instead.
HWY_INLINE FloatVec LoadFloats(F8, const std::uint8_t* HWY_RESTRICT from) {
  const FloatTag d;
  const UintTag du;
  const IntTag di;
  const UintVec bits = hn::PromoteTo(du, hn::LoadU(ByteTag(), from));
  const UintVec magnitude = hn::And(bits, hn::Set(du, 0x7F));
  const UintVec sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80)));
  const FloatVec normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120u << 23)));
  const FloatVec subnormal = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-9f));
  const auto is_normal =
      hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(di, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 7)))));
  const auto is_nan =
      hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(di, hn::Eq(hn::BitCast(di, magnitude), hn::Set(di, 0x7F)))));
  const FloatVec finite = hn::IfThenElse(is_normal, normal, subnormal);
  const FloatVec value = hn::IfThenElse(is_nan, hn::Set(d, std::numeric_limits<float>::quiet_NaN()), finite);
  return hn::Or(value, hn::BitCast(d, sign));
}

/// Round to nearest even, as the upper half of a 32-bit word; NaN stays NaN.
HWY_INLINE UintVec RoundToBf16(FloatVec value) {
  const FloatTag d;
  const UintTag du;
  const UintVec bits = hn::BitCast(du, value);
  const UintVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const UintVec rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const FloatVec kept = hn::IfThenElse(hn::IsNaN(value), value, hn::BitCast(d, rounded));
  return hn::And(hn::BitCast(du, kept), hn::Set(du, 0xFFFF0000));
}

// ---- Arithmetic of the matrix products

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

/// 2^x for x <= 0. Exactly 0 below -126.5 (so for -infinity too), NaN for NaN. Relative error below 3e-7.
HWY_INLINE FloatVec Exp2(FloatVec x) {
  const FloatTag d;
  const UintTag du;
  x = hn::Max(hn::Set(d, -127.0f), x);  // this order of operands lets NaN through
  // Adding 1.5 * 2^23 leaves round(x) in the low bits of the sum.
  const FloatVec shifter = hn::Set(d, 12582912.0f);
  const FloatVec shifted = hn::Add(x, shifter);
  const FloatVec f = hn::Sub(x, hn::Sub(shifted, shifter));  // in [-0.5, 0.5]
  const FloatVec power = hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, shifted)), hn::Set(du, 127u << 23)));
  // Minimax polynomial of 2^f in relative error.
  FloatVec p = hn::Set(d, 1.32764717e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.67554154e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55071328e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40221197e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93146967e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::Mul(p, power);
}

// ---- The tile

/// What the steps below share: sizes, scratch, and which vectors of lanes take part in the current chunk.
struct Tile {
  const TileTask& task;
  const AttentionProblem& problem;
  Scratch scratch;
  std::int64_t head_dim;
  std::int64_t group;
  std::int64_t num_rows;
  std::int64_t num_vecs;
  std::int64_t capacity;                   ///< keys of a chunk
  std::uint32_t all_rows;                  ///< membership bits of all rows
  std::int64_t min_limit;                  ///< smallest limit of the rows
  float logit_scale;                       ///< applied to the logits in the softmax; log2(e) included
  std::uint32_t vec_rows[max_tile_lanes];  ///< rows that have lanes in a vector

  // The current chunk.
  const Chunk* chunk = nullptr;
  bool finite_values = true;  ///< no NaN or infinity among its V elements
  std::int64_t num_active = 0;
  std::int16_t active[max_tile_lanes];  ///< vectors with such a row

  explicit Tile(const TileTask& t)
      : task(t),
        problem(*t.problem),
        scratch(t.scratch, t.route->num_rows * problem.group(), problem.head_dim),
        head_dim(problem.head_dim),
        group(problem.group()),
        num_rows(t.route->num_rows),
        num_vecs((num_rows * group + kLanes - 1) / kLanes),
        capacity(chunk_keys(head_dim)),
        all_rows(num_rows >= 32 ? ~0u : (1u << num_rows) - 1u),
        min_limit(*std::min_element(t.route->limits, t.route->limits + num_rows)) {}

  float* vec_q(std::int64_t vec) const { return scratch.q + vec * kLanes * head_dim; }
  float* vec_o(std::int64_t vec) const { return scratch.o + vec * kLanes * head_dim; }
  float* vec_s(std::int64_t vec) const { return scratch.s + vec * kLanes * capacity; }
};

/// Fills the per-lane tables and clears the running sums.
void InitLanes(Tile& tile) {
  const Scratch& s = tile.scratch;
  const std::int64_t lanes = tile.num_rows * tile.group;
  const std::int64_t padded = tile.num_vecs * kLanes;
  for (std::int64_t lane = 0; lane < padded; ++lane) {
    s.max[lane] = -std::numeric_limits<float>::infinity();
    s.sum[lane] = 0.0f;
    s.sum_t[lane] = 0.0f;
    if (lane < lanes) {
      const std::int64_t row = lane / tile.group;
      const std::int64_t limit = tile.task.route->limits[row];
      // A 64-bit position may be past every block that an id can name.
      s.limit_block[lane] =
          static_cast<std::int32_t>(limit < 0 ? -1
                                              : std::min<std::int64_t>(limit / tile.problem.block_size,
                                                                       std::numeric_limits<std::int32_t>::max()));
      s.limit_offset[lane] = limit < 0 ? -1 : static_cast<std::int32_t>(limit % tile.problem.block_size);
      s.token_bit[lane] = 1u << row;
    } else {  // padding lanes have q = 0 and are never stored; they only must not make a masked piece look special
      s.limit_block[lane] = std::numeric_limits<std::int32_t>::max();
      s.limit_offset[lane] = 0;
      s.token_bit[lane] = ~0u;
    }
  }
  for (std::int64_t vec = 0; vec < tile.num_vecs; ++vec) {
    tile.vec_rows[vec] = 0;
    for (std::int64_t lane = vec * kLanes; lane < std::min(lanes, (vec + 1) * kLanes); ++lane) {
      tile.vec_rows[vec] |= s.token_bit[lane];
    }
  }
  std::memset(s.o, 0, static_cast<std::size_t>(padded * tile.head_dim) * sizeof(float));
}

template <class Type>
void LoadRow(const AttentionProblem& problem, std::int64_t row, std::int64_t head, float* HWY_RESTRICT values) {
  const auto* from = static_cast<const typename Type::Storage*>(problem.q.data) + row * problem.q.stride_row +
                     head * problem.q.stride_head;
  for (std::int64_t i = 0; i < problem.head_dim; i += kLanes) {
    hn::Store(LoadFloats(Type(), from + i), FloatTag(), values + i);
  }
}

/// Transposes the tile's queries into panels. Float arithmetic folds the logit scale into them; BF16 arithmetic leaves
/// the numbers as they are stored (the scale comes in at the softmax) except for its sign, since the running maximum is
/// taken before scaling.
template <class Math>
void PackQueries(Tile& tile) {
  constexpr float log2_e = 1.44269504088896340736f;
  const float scale = tile.task.scalars.logit_scale * log2_e;
  tile.logit_scale = Math::pairs ? std::fabs(scale) : 1.0f;
  const float factor = Math::pairs ? std::copysign(1.0f, scale) : scale;
  const AttentionProblem& problem = tile.problem;
  if (tile.num_rows * tile.group % kLanes != 0) {  // padding lanes
    float* last = tile.scratch.q + (tile.num_vecs - 1) * kLanes * (Math::pairs ? tile.head_dim / 2 : tile.head_dim);
    std::memset(last, 0, static_cast<std::size_t>(kLanes * tile.head_dim) * sizeof(float));
  }
  for (std::int64_t lane = 0; lane < tile.num_rows * tile.group; ++lane) {
    const std::int64_t row = tile.task.route->row_begin + lane / tile.group;
    const std::int64_t head = tile.task.kv_head * tile.group + lane % tile.group;
    float* HWY_RESTRICT values = tile.scratch.row;
    if (problem.q.dtype == DType::bf16) LoadRow<Bf16>(problem, row, head, values);
    if (problem.q.dtype == DType::f16) LoadRow<F16>(problem, row, head, values);
    if (problem.q.dtype == DType::f8_e4m3) LoadRow<F8>(problem, row, head, values);
    float* HWY_RESTRICT panel = tile.scratch.q + lane % kLanes;
    if constexpr (Math::pairs) {
      panel += lane / kLanes * kLanes * (tile.head_dim / 2);
      for (std::int64_t i = 0; i < tile.head_dim; i += 2) {
        std::uint32_t pair[2];
        for (int j = 0; j < 2; ++j) pair[j] = std::bit_cast<std::uint32_t>(values[i + j] * factor);
        panel[i / 2 * kLanes] = std::bit_cast<float>((pair[0] >> 16) | (pair[1] & 0xFFFF0000u));
      }
    } else {
      panel += lane / kLanes * kLanes * tile.head_dim;
      for (std::int64_t i = 0; i < tile.head_dim; ++i) panel[i * kLanes] = values[i] * factor;
    }
  }
}

// ---- Gathering a chunk

/// Position in the route: the next entry, and how much of its block earlier chunks have taken.
struct RouteCursor {
  std::int64_t entry;
  std::int64_t offset = 0;
};

/// Number of keys of a block that some member row may attend to.
std::int64_t AttendedKeys(const Tile& tile, const RouteEntry& entry) {
  const std::int64_t start = entry.block * tile.problem.block_size;
  if (start + tile.problem.block_size - 1 <= tile.min_limit) return tile.problem.block_size;
  std::int64_t last = -1;
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    if ((entry.members >> row & 1) != 0) last = std::max(last, tile.task.route->limits[row]);
  }
  return std::clamp<std::int64_t>(last - start + 1, 0, tile.problem.block_size);
}

/// Appends keys of one block to a chunk.
void AppendPiece(const Tile& tile, const RouteEntry& entry, std::int64_t offset, std::int64_t count, Chunk& chunk) {
  const AttentionProblem& problem = tile.problem;
  const std::int64_t last = entry.block * problem.block_size + offset + count - 1;
  const bool masked = entry.members != tile.all_rows || last > tile.min_limit;
  chunk.pieces[chunk.num_pieces++] = {static_cast<std::int32_t>(chunk.num_keys),
                                      static_cast<std::int32_t>(count),
                                      entry.block,
                                      static_cast<std::int32_t>(offset),
                                      entry.members,
                                      masked};
  chunk.rows |= entry.members;
  const auto element = static_cast<std::int64_t>(dtype_size(problem.kv_dtype));
  const auto row_address = [&](const KvCache& cache, std::int64_t slot) {
    return static_cast<const char*>(cache.data) +
           (entry.page * cache.stride_page + slot * cache.stride_token + tile.task.kv_head * cache.stride_head) *
               element;
  };
  for (std::int64_t i = 0; i < count; ++i, ++chunk.num_keys) {
    chunk.k_rows[chunk.num_keys] = row_address(problem.k, entry.slot + offset + i);
    chunk.v_rows[chunk.num_keys] = row_address(problem.v, entry.slot + offset + i);
  }
}

/// Cuts the next keys of the route into pieces until the chunk is full; an empty chunk is the end of the route.
void FillChunk(const Tile& tile, RouteCursor& cursor, Chunk& chunk) {
  chunk.num_keys = 0;
  chunk.num_pieces = 0;
  chunk.rows = 0;
  while (cursor.entry < tile.task.entry_end && chunk.num_keys < tile.capacity) {
    const RouteEntry& entry = tile.task.route->entries[cursor.entry];
    const std::int64_t remaining = AttendedKeys(tile, entry) - cursor.offset;
    const std::int64_t count = std::min(remaining, tile.capacity - chunk.num_keys);
    if (count > 0) AppendPiece(tile, entry, cursor.offset, count, chunk);
    if (count < remaining) {
      cursor.offset += count;
      break;
    }
    ++cursor.entry;
    cursor.offset = 0;
  }
}

/// Makes a chunk the current one.
void SelectChunk(Tile& tile, const Chunk& chunk) {
  tile.chunk = &chunk;
  tile.num_active = 0;
  for (std::int64_t vec = 0; vec < tile.num_vecs; ++vec) {
    if ((tile.vec_rows[vec] & chunk.rows) != 0) tile.active[tile.num_active++] = static_cast<std::int16_t>(vec);
  }
}

/// Fetches a chunk's rows into the L2 cache a few lines at a time, between the products of the chunk before it: blocks
/// lie scattered over memory, and no hardware prefetcher can know the next one.
class Prefetcher {
 public:
  /// `total_work`: sum of what the calls of advance() will report.
  Prefetcher(const Chunk& chunk, std::int64_t row_bytes, std::int64_t total_work)
      : chunk_(chunk), row_bytes_(row_bytes), num_rows_(2 * chunk.num_keys), total_work_(total_work) {
    num_lines_ = num_rows_ * ((row_bytes + line_bytes - 1) / line_bytes);
  }

  /// Some work is done: fetches the same part of the lines.
  void advance(std::int64_t work) {
    for (due_ += work * num_lines_; due_ >= total_work_ && row_ < num_rows_; due_ -= total_work_) {
      const char* row = row_ % 2 == 0 ? chunk_.k_rows[row_ / 2] : chunk_.v_rows[row_ / 2];
      __builtin_prefetch(row + byte_, 0, 2);
      byte_ += line_bytes;
      if (byte_ >= row_bytes_) {
        byte_ = 0;
        ++row_;
      }
    }
  }

 private:
  static constexpr std::int64_t line_bytes = 64;
  const Chunk& chunk_;
  std::int64_t row_bytes_;
  std::int64_t num_rows_;  ///< K and V rows
  std::int64_t num_lines_ = 0;
  std::int64_t total_work_;
  std::int64_t due_ = 0;  ///< lines to fetch, times total_work_
  std::int64_t row_ = 0;
  std::int64_t byte_ = 0;
};

/// Keys of the chunk, rounded up to what the products work in; the added ones are zeros and masked.
std::int64_t PaddedKeys(const Tile& tile) { return (tile.chunk->num_keys + 7) / 8 * 8; }

/// One key or value row into float words, K's layout.
template <class Type>
HWY_INLINE void CopyKeyFloats(const typename Type::Storage* HWY_RESTRICT from, std::int64_t head_dim,
                              float* HWY_RESTRICT to) {
  for (std::int64_t i = 0; i < head_dim; i += kLanes) hn::Store(LoadFloats(Type(), from + i), FloatTag(), to + i);
}

/// One key row into bf16 pairs: for BF16 storage the bytes as they are.
template <class Type>
HWY_INLINE void CopyKeyPairs(const typename Type::Storage* HWY_RESTRICT from, std::int64_t head_dim,
                             float* HWY_RESTRICT to) {
  if constexpr (Type::dtype == DType::bf16) {
    std::memcpy(to, from, static_cast<std::size_t>(head_dim) * 2);
  } else {
    auto* HWY_RESTRICT bits = reinterpret_cast<std::uint16_t*>(to);
    for (std::int64_t i = 0; i < head_dim; i += kLanes) {
      const UintVec upper = hn::ShiftRight<16>(hn::BitCast(UintTag(), LoadFloats(Type(), from + i)));
      hn::StoreU(hn::DemoteTo(HalfBitsTag(), hn::BitCast(IntTag(), upper)), HalfBitsTag(), bits + i);
    }
  }
}

/// One value row into float panels [D / 16][chunk][16]. Adds v * 0 to `check`, which so becomes NaN if v is not finite.
template <class Type>
HWY_INLINE void CopyValueFloats(const typename Type::Storage* HWY_RESTRICT from, std::int64_t head_dim,
                                std::int64_t chunk, std::int64_t key, float* HWY_RESTRICT to, FloatVec& check) {
  const FloatTag d;
  for (std::int64_t i = 0; i < head_dim; i += kLanes) {
    const FloatVec value = LoadFloats(Type(), from + i);
    check = hn::MulAdd(value, hn::Zero(d), check);
    hn::Store(value, d, to + i / 16 * value_panel_words(chunk) + key * 16 + i % 16);
  }
}

/// Two value rows into panels of bf16 pairs [D / 16][chunk / 2][16]. `odd` may be null: zeros.
template <class Type>
HWY_INLINE void CopyValuePairs(const typename Type::Storage* HWY_RESTRICT even,
                               const typename Type::Storage* HWY_RESTRICT odd, std::int64_t head_dim,
                               std::int64_t chunk, std::int64_t key, float* HWY_RESTRICT to, FloatVec& check) {
  const FloatTag d;
  const UintTag du;
  for (std::int64_t i = 0; i < head_dim; i += kLanes) {
    const FloatVec low = LoadFloats(Type(), even + i);
    const FloatVec high = odd != nullptr ? LoadFloats(Type(), odd + i) : hn::Zero(d);
    check = hn::MulAdd(low, hn::Zero(d), hn::MulAdd(high, hn::Zero(d), check));
    const UintVec word = hn::Or(hn::ShiftRight<16>(hn::BitCast(du, low)), hn::BitCast(du, high));
    hn::Store(hn::BitCast(d, word), d, to + i / 16 * value_panel_words(chunk / 2) + key / 2 * 16 + i % 16);
  }
}

/// Copies the chunk's keys out of the cache; zeros pad them.
template <class Math, class Type>
void GatherKeys(const Tile& tile) {
  using Storage = typename Type::Storage;
  const std::int64_t words = Math::pairs ? tile.head_dim / 2 : tile.head_dim;
  float* keys = tile.scratch.k;
  for (std::int64_t key = 0; key < tile.chunk->num_keys; ++key) {
    const auto* from = reinterpret_cast<const Storage*>(tile.chunk->k_rows[key]);
    if constexpr (Math::pairs) {
      CopyKeyPairs<Type>(from, tile.head_dim, keys + key * words);
    } else {
      CopyKeyFloats<Type>(from, tile.head_dim, keys + key * words);
    }
  }
  const std::int64_t padding = PaddedKeys(tile) - tile.chunk->num_keys;
  std::memset(keys + tile.chunk->num_keys * words, 0, static_cast<std::size_t>(padding * words) * sizeof(float));
}

/// Copies the chunk's values out of the cache into panels, and notes whether all are finite.
template <class Math, class Type>
void GatherValues(Tile& tile) {
  using Storage = typename Type::Storage;
  const FloatTag d;
  FloatVec check = hn::Zero(d);
  float* values = tile.scratch.v;
  const std::int64_t num_keys = tile.chunk->num_keys;
  const auto row = [&](std::int64_t key) { return reinterpret_cast<const Storage*>(tile.chunk->v_rows[key]); };
  if constexpr (Math::pairs) {
    for (std::int64_t key = 0; key < num_keys; key += 2) {
      const Storage* odd = key + 1 < num_keys ? row(key + 1) : nullptr;
      CopyValuePairs<Type>(row(key), odd, tile.head_dim, tile.capacity, key, values, check);
    }
  } else {
    for (std::int64_t key = 0; key < num_keys; ++key) {
      CopyValueFloats<Type>(row(key), tile.head_dim, tile.capacity, key, values, check);
    }
  }
  tile.finite_values = hn::AllFalse(d, hn::IsNaN(check));
}

// ---- Products

/// Columns that a product takes at a time, for 1, 2 and 3 vectors of lanes: enough accumulators to hide the latency of
/// a multiply-add, few enough for 16 registers.
template <int kVecs>
inline constexpr int product_columns = kVecs == 1 ? 8 : 4;

/// Splits the active vectors into runs of 3 (2 + 2 rather than 3 + 1) and calls one(first index, constant<size>).
template <class One>
void ForEachVecGroup(std::int64_t num_active, const One& one) {
  std::int64_t i = 0;
  while (i < num_active) {
    const std::int64_t left = num_active - i;
    if (left >= 3 && left != 4) {
      one(i, std::integral_constant<int, 3>());
      i += 3;
    } else if (left >= 2) {
      one(i, std::integral_constant<int, 2>());
      i += 2;
    } else {
      one(i, std::integral_constant<int, 1>());
      i += 1;
    }
  }
}

/// Vector multiply-adds of Logits and AddValues for the current chunk.
std::int64_t ProductWork(const Tile& tile) {
  return tile.num_active * tile.head_dim * (PaddedKeys(tile) + tile.chunk->num_keys);
}

/// s[vector][key][lane] = q . k of the chunk, for the active vectors.
template <class Math>
void Logits(const Tile& tile, Prefetcher& prefetcher) {
  const std::int64_t words = Math::pairs ? tile.head_dim / 2 : tile.head_dim;
  const std::int64_t padded_keys = PaddedKeys(tile);
  ForEachVecGroup(tile.num_active, [&](std::int64_t first, auto size) {
    constexpr int kVecs = decltype(size)::value;
    constexpr int kCols = product_columns<kVecs>;
    const float* panels[kVecs];
    for (int i = 0; i < kVecs; ++i) panels[i] = tile.scratch.q + tile.active[first + i] * kLanes * words;
    for (std::int64_t key = 0; key < padded_keys; key += kCols) {
      const float* columns[kCols];
      float* out[kVecs];
      for (int j = 0; j < kCols; ++j) columns[j] = tile.scratch.k + (key + j) * words;
      for (int i = 0; i < kVecs; ++i) out[i] = tile.vec_s(tile.active[first + i]) + key * kLanes;
      Math::template Product<kVecs, kCols, 1, false>(static_cast<std::size_t>(words), panels, columns, nullptr, out);
      prefetcher.advance(kVecs * kCols * tile.head_dim);
    }
  });
}

/// o[vector][d][lane] = alpha * o + sum over the chunk's keys of v * p, for the active vectors.
template <class Math>
void AddValues(const Tile& tile, Prefetcher& prefetcher) {
  const std::int64_t num_keys = tile.chunk->num_keys;
  const std::int64_t key_words = Math::pairs ? (num_keys + 1) / 2 : num_keys;
  const std::int64_t panel_words = value_panel_words(Math::pairs ? tile.capacity / 2 : tile.capacity);
  ForEachVecGroup(tile.num_active, [&](std::int64_t first, auto size) {
    constexpr int kVecs = decltype(size)::value;
    constexpr int kCols = product_columns<kVecs>;
    const float* panels[kVecs];
    const float* alpha[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      panels[i] = tile.vec_s(tile.active[first + i]);
      alpha[i] = tile.scratch.alpha + tile.active[first + i] * kLanes;
    }
    for (std::int64_t dim = 0; dim < tile.head_dim; dim += kCols) {
      const float* columns[kCols];
      float* out[kVecs];
      for (int j = 0; j < kCols; ++j) columns[j] = tile.scratch.v + dim / 16 * panel_words + dim % 16 + j;
      for (int i = 0; i < kVecs; ++i) out[i] = tile.vec_o(tile.active[first + i]) + dim * kLanes;
      Math::template Product<kVecs, kCols, 16, true>(static_cast<std::size_t>(key_words), panels, columns, alpha, out);
      prefetcher.advance(kVecs * kCols * num_keys);
    }
  });
}

/// AddValues for a chunk that holds NaN or infinite values, which must reach only the rows that attend to them: a
/// probability of 0 skips its product. Slow, and rare.
template <class Math>
void AddValuesSkippingZeros(const Tile& tile) {
  const FloatTag d;
  const UintTag du;
  for (std::int64_t a = 0; a < tile.num_active; ++a) {
    const std::int64_t vec = tile.active[a];
    const float* p = tile.vec_s(vec);
    float* o = tile.vec_o(vec);
    const FloatVec alpha = hn::Load(d, tile.scratch.alpha + vec * kLanes);
    for (std::int64_t dim = 0; dim < tile.head_dim; ++dim) {
      FloatVec sum = hn::Mul(hn::Load(d, o + dim * kLanes), alpha);
      for (std::int64_t key = 0; key < tile.chunk->num_keys; ++key) {
        FloatVec prob;
        float value;
        if constexpr (Math::pairs) {
          const UintVec pair = hn::BitCast(du, hn::Load(d, p + key / 2 * kLanes));
          const auto value_pair = std::bit_cast<std::uint32_t>(
              tile.scratch.v[dim / 16 * value_panel_words(tile.capacity / 2) + key / 2 * 16 + dim % 16]);
          prob = hn::BitCast(d, key % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(du, 0xFFFF0000)));
          value = std::bit_cast<float>(key % 2 == 0 ? value_pair << 16 : value_pair & 0xFFFF0000u);
        } else {
          prob = hn::Load(d, p + key * kLanes);
          value = tile.scratch.v[dim / 16 * value_panel_words(tile.capacity) + key * 16 + dim % 16];
        }
        const FloatVec term = hn::Mul(prob, hn::Set(d, value));
        sum = hn::Add(sum, hn::IfThenElseZero(hn::Ne(prob, hn::Zero(d)), term));
      }
      hn::Store(sum, d, o + dim * kLanes);
    }
  }
}

// ---- Softmax

/// Sets the logits of keys that a lane does not attend to to -infinity.
void MaskVec(const Tile& tile, std::int64_t vec, float* HWY_RESTRICT s) {
  const FloatTag d;
  const IntTag di;
  const Scratch& scratch = tile.scratch;
  const FloatVec minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto limit_block = hn::Load(di, scratch.limit_block + vec * kLanes);
  const auto limit_offset = hn::Load(di, scratch.limit_offset + vec * kLanes);
  const auto token_bit = hn::Load(di, reinterpret_cast<const std::int32_t*>(scratch.token_bit) + vec * kLanes);
  for (std::int64_t p = 0; p < tile.chunk->num_pieces; ++p) {
    const Piece& piece = tile.chunk->pieces[p];
    if (!piece.masked) continue;
    // Last attended offset within the block, per lane: all of the block, up to the limit, or none.
    const auto block = hn::Set(di, piece.block);
    const auto member = hn::Ne(hn::And(token_bit, hn::Set(di, static_cast<std::int32_t>(piece.members))), hn::Zero(di));
    const auto at_limit = hn::IfThenElse(hn::Eq(block, limit_block), limit_offset, hn::Set(di, -1));
    const auto within = hn::IfThenElse(hn::Lt(block, limit_block), hn::Set(di, 1 << 30), at_limit);
    const auto last = hn::IfThenElse(member, within, hn::Set(di, -1));
    float* HWY_RESTRICT row = s + piece.first_key * kLanes;
    for (std::int32_t i = 0; i < piece.num_keys; ++i, row += kLanes) {
      const auto attended = hn::VecFromMask(di, hn::Gt(last, hn::Set(di, piece.offset + i - 1)));
      const auto mask = hn::MaskFromVec(hn::BitCast(d, attended));
      hn::Store(hn::IfThenElse(mask, hn::Load(d, row), minus_infinity), d, row);
    }
  }
}

FloatVec MaxOfKeys(const float* HWY_RESTRICT s, std::int64_t num_keys) {
  const FloatTag d;
  FloatVec m0 = hn::Set(d, -std::numeric_limits<float>::infinity());
  FloatVec m1 = m0;
  FloatVec m2 = m0;
  FloatVec m3 = m0;
  std::int64_t key = 0;
  for (; key + 4 <= num_keys; key += 4) {
    m0 = hn::Max(m0, hn::Load(d, s + key * kLanes));
    m1 = hn::Max(m1, hn::Load(d, s + (key + 1) * kLanes));
    m2 = hn::Max(m2, hn::Load(d, s + (key + 2) * kLanes));
    m3 = hn::Max(m3, hn::Load(d, s + (key + 3) * kLanes));
  }
  for (; key < num_keys; ++key) m0 = hn::Max(m0, hn::Load(d, s + key * kLanes));
  return hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
}

/// Replaces the logits of one vector of lanes by probabilities relative to `scaled_max`, returns their sum. The float32
/// probabilities are summed, also where BF16 ones are stored.
template <class Math>
FloatVec Probabilities(float* HWY_RESTRICT s, std::int64_t num_keys, FloatVec scale, FloatVec scaled_max) {
  const FloatTag d;
  FloatVec sum0 = hn::Zero(d);
  FloatVec sum1 = hn::Zero(d);
  std::int64_t key = 0;
  for (; key + 2 <= num_keys; key += 2) {
    const FloatVec p0 = Exp2(hn::MulSub(hn::Load(d, s + key * kLanes), scale, scaled_max));
    const FloatVec p1 = Exp2(hn::MulSub(hn::Load(d, s + (key + 1) * kLanes), scale, scaled_max));
    sum0 = hn::Add(sum0, p0);
    sum1 = hn::Add(sum1, p1);
    if constexpr (Math::pairs) {
      const UintVec pair = hn::Or(hn::ShiftRight<16>(RoundToBf16(p0)), RoundToBf16(p1));
      hn::Store(hn::BitCast(d, pair), d, s + key / 2 * kLanes);
    } else {
      hn::Store(p0, d, s + key * kLanes);
      hn::Store(p1, d, s + (key + 1) * kLanes);
    }
  }
  if (key < num_keys) {
    const FloatVec p0 = Exp2(hn::MulSub(hn::Load(d, s + key * kLanes), scale, scaled_max));
    sum0 = hn::Add(sum0, p0);
    if constexpr (Math::pairs) {
      hn::Store(hn::BitCast(d, hn::ShiftRight<16>(RoundToBf16(p0))), d, s + key / 2 * kLanes);
    } else {
      hn::Store(p0, d, s + key * kLanes);
    }
  }
  return hn::Add(sum0, sum1);
}

/// Sum of exp(temperature * (logit - max)), for lse_t.
FloatVec TemperatureSum(const float* HWY_RESTRICT s, std::int64_t num_keys, FloatVec scale, FloatVec scaled_max,
                        FloatVec temperature) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  for (std::int64_t key = 0; key < num_keys; ++key) {
    const FloatVec x = hn::MulSub(hn::Load(d, s + key * kLanes), scale, scaled_max);
    sum = hn::Add(sum, Exp2(hn::Mul(x, temperature)));
  }
  return sum;
}

/// One step of the online softmax for every active vector: logits to probabilities, running maximum and sums moved on.
template <class Math>
void Softmax(const Tile& tile) {
  const FloatTag d;
  const Scratch& scratch = tile.scratch;
  const FloatVec scale = hn::Set(d, tile.logit_scale);
  const FloatVec minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t a = 0; a < tile.num_active; ++a) {
    const std::int64_t vec = tile.active[a];
    float* s = tile.vec_s(vec);
    MaskVec(tile, vec, s);
    float* max = scratch.max + vec * kLanes;
    float* sum = scratch.sum + vec * kLanes;
    const FloatVec old_max = hn::Load(d, max);
    const FloatVec new_max = hn::Max(old_max, MaxOfKeys(s, tile.chunk->num_keys));
    // A lane that has seen no key yet keeps -infinity as its maximum; subtracting 0 in its place keeps
    // -infinity - -infinity out of the exponent.
    const auto none = hn::Eq(new_max, minus_infinity);
    const FloatVec scaled_max = hn::IfThenElse(none, hn::Zero(d), hn::Mul(new_max, scale));
    const FloatVec shift = hn::MulSub(old_max, scale, scaled_max);
    const FloatVec alpha = Exp2(shift);
    if (tile.problem.lse_t.defined()) {
      float* sum_t = scratch.sum_t + vec * kLanes;
      const FloatVec temperature = hn::Set(d, tile.task.scalars.temperature);
      const FloatVec add = TemperatureSum(s, tile.chunk->num_keys, scale, scaled_max, temperature);
      hn::Store(hn::MulAdd(hn::Load(d, sum_t), Exp2(hn::Mul(shift, temperature)), add), d, sum_t);
    }
    const FloatVec add = Probabilities<Math>(s, tile.chunk->num_keys, scale, scaled_max);
    hn::Store(hn::MulAdd(hn::Load(d, sum), alpha, add), d, sum);
    hn::Store(alpha, d, scratch.alpha + vec * kLanes);
    hn::Store(new_max, d, max);
  }
}

// ---- Results

template <class Storage>
HWY_INLINE void StoreUpperHalves(UintVec bits, Storage* HWY_RESTRICT to) {
  hn::StoreU(hn::DemoteTo(HalfBitsTag(), hn::BitCast(IntTag(), hn::ShiftRight<16>(bits))), HalfBitsTag(), to);
}

HWY_INLINE void StoreFloats(Bf16, FloatVec value, std::uint16_t* HWY_RESTRICT to) {
  StoreUpperHalves(RoundToBf16(value), to);
}

HWY_INLINE void StoreFloats(F16, FloatVec value, std::uint16_t* HWY_RESTRICT to) {
#if KVSIEVE_HAS_F16
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  hn::StoreU(hn::BitCast(HalfBitsTag(), hn::DemoteTo(dh, value)), HalfBitsTag(), to);
#else
  alignas(64) float values[kLanes];
  hn::Store(value, FloatTag(), values);
  for (std::int64_t i = 0; i < kLanes; ++i) to[i] = float_to_f16(values[i]);
#endif
}

template <class Type>
void StoreRowAs(const AttentionProblem& problem, float v_scale, std::int64_t row, std::int64_t head, float* values) {
  using Storage = typename Type::Storage;
  const FloatTag d;
  auto* to = static_cast<Storage*>(problem.out.data) + row * problem.out.stride_row + head * problem.out.stride_head;
  const auto* gate = static_cast<const Storage*>(problem.gate.data);
  if (gate != nullptr) gate += row * problem.gate.stride_row + head * problem.gate.stride_head;
  for (std::int64_t i = 0; i < problem.head_dim; i += kLanes) {
    StoreFloats(Type(), hn::Mul(hn::LoadU(d, values + i), hn::Set(d, v_scale)), to + i);
    if (gate == nullptr) continue;
    // out = round(attention) * sigmoid(gate): the rounded attention is read back.
    alignas(64) float gates[kLanes];
    hn::Store(LoadFloats(Type(), gate + i), d, gates);
    for (std::int64_t j = 0; j < kLanes; ++j) gates[j] = 1.0f / (1.0f + std::exp(-gates[j]));
    StoreFloats(Type(), hn::Mul(LoadFloats(Type(), to + i), hn::Load(d, gates)), to + i);
  }
}

void StoreRow(const AttentionProblem& problem, float v_scale, std::int64_t row, std::int64_t head, float* values) {
  if (problem.out.dtype == DType::bf16) {
    StoreRowAs<Bf16>(problem, v_scale, row, head, values);
  } else {
    StoreRowAs<F16>(problem, v_scale, row, head, values);
  }
}

/// Normalises every row of the tile and writes it, as output or as the state of this split.
void FinishTile(const Tile& tile) {
  constexpr float ln_2 = 0.693147180559945309417f;
  const AttentionProblem& problem = tile.problem;
  const Scratch& scratch = tile.scratch;
  const Partials& partials = tile.task.partials;
  for (std::int64_t lane = 0; lane < tile.num_rows * tile.group; ++lane) {
    const std::int64_t row = tile.task.route->row_begin + lane / tile.group;
    const std::int64_t head = tile.task.kv_head * tile.group + lane % tile.group;
    const std::int64_t state = (row * problem.num_qo_heads + head) * partials.num_splits + tile.task.split;
    const float sum = scratch.sum[lane];
    const bool empty = sum == 0.0f;  // no key; a NaN sum stays NaN
    const float factor = empty ? 0.0f : 1.0f / sum;
    const float* o = tile.vec_o(lane / kLanes) + lane % kLanes;
    float* values = partials.out != nullptr ? partials.out + state * tile.head_dim : scratch.row;
    for (std::int64_t i = 0; i < tile.head_dim; ++i) values[i] = o[i * kLanes] * factor;

    const float minus_infinity = -std::numeric_limits<float>::infinity();
    const float max = scratch.max[lane] * tile.logit_scale;
    const float lse = empty ? minus_infinity : ln_2 * (max + std::log2(sum));
    float lse_t = minus_infinity;
    if (problem.lse_t.defined() && !empty) {
      lse_t = ln_2 * (tile.task.scalars.temperature * max + std::log2(scratch.sum_t[lane]));
    }
    if (partials.out != nullptr) {
      partials.lse[state] = lse;
      if (partials.lse_t != nullptr) partials.lse_t[state] = lse_t;
      continue;
    }
    StoreRow(problem, tile.task.scalars.v_scale, row, head, values);
    const auto store_lse = [&](const RowHeads& to, float value) {
      if (to.defined()) static_cast<float*>(to.data)[row * to.stride_row + head * to.stride_head] = value;
    };
    store_lse(problem.lse, lse);
    store_lse(problem.lse_t, lse_t);
  }
}

template <class Math, class Type>
void AttendTileAs(const TileTask& task) {
  Tile tile(task);
  InitLanes(tile);
  PackQueries<Math>(tile);
  RouteCursor cursor{task.entry_begin};
  Chunk* current = tile.scratch.chunks;
  Chunk* next = tile.scratch.chunks + 1;
  FillChunk(tile, cursor, *current);
  while (current->num_keys > 0) {
    SelectChunk(tile, *current);
    FillChunk(tile, cursor, *next);
    Prefetcher prefetcher(*next, tile.head_dim * static_cast<std::int64_t>(sizeof(typename Type::Storage)),
                          ProductWork(tile));
    GatherKeys<Math, Type>(tile);
    Logits<Math>(tile, prefetcher);
    Softmax<Math>(tile);
    GatherValues<Math, Type>(tile);
    if (tile.finite_values) {
      AddValues<Math>(tile, prefetcher);
    } else {
      AddValuesSkippingZeros<Math>(tile);
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

bool detect_bf16_dot() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  const char* setting = std::getenv("KVSIEVE_BF16_DOT");
  if (setting != nullptr && std::strcmp(setting, "0") == 0) return false;
  return HWY_DYNAMIC_DISPATCH(HasBf16Kernel)() && __builtin_cpu_supports("avx512bf16");
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
