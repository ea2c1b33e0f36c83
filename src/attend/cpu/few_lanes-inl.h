// SPDX-License-Identifier: Apache-2.0
//
// Both products for tiles of few lanes. Included by kernel.cpp once per instruction set, inside its namespace; hence
// no include guard.
//
// Tiles of at most `few_lanes` lanes that would leave a vector part empty (decode with 12 heads) keep queries and
// output by rows, [lane][D], and multiply along the head dim: 12 lanes then cost 12, not 16. Since every element of K
// and V is used right where it is read, once a chunk for 12 lanes, both stay in the cache of the caller: no copies.

constexpr std::int64_t few_lanes = 16;

/// Keys whose values a sweep over the head dim reads: neighbouring tokens lie a power of two of bytes apart and share
/// few sets of the L1 cache, whose lines the next dims of the same keys need again.
constexpr std::int64_t value_sweep_keys = 32;

/// Splits rows into runs of 12, 8, 4, 2 and 1 and calls one(first index, constant<size>).
template <class One>
void ForEachRowGroup(std::int64_t count, const One& one) {
  std::int64_t i = 0;
  const auto take = [&](auto size) {
    for (; count - i >= size; i += size) one(i, size);
  };
  take(std::integral_constant<int, 12>());
  take(std::integral_constant<int, 8>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

/// Vectors (keys, or vectors of dims) that a product takes at a time beside kRows rows: at least 8 accumulators, which
/// hide the latency of a multiply-add, and few enough for 16 registers.
template <int kRows>
constexpr int beside_rows = kRows >= 8   ? 1
                            : kRows == 4 ? 2
                                         : 4;

/// Element r of the result is the sum of the elements of v[r].
template <std::int64_t kVecs>
HWY_INLINE FloatVec SumOfEach(const FloatVec (&v)[kVecs]) {
  static_assert(kVecs == kLanes);
#if HWY_TARGET == HWY_SCALAR
  return v[0];
#else
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> wide;
  // Within blocks of 16 bytes: four vectors become one, whose element r belongs to v[r].
  const auto add_four = [&](FloatVec a, FloatVec b, FloatVec c, FloatVec e) HWY_ATTR {
    const auto ab = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    const auto ce = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)),
                   hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce)));
  };
  const FloatVec s0 = add_four(v[0], v[1], v[2], v[3]);
  if constexpr (kVecs == 4) {
    return s0;
  } else {
    const auto add_halves = [&](FloatVec a, FloatVec b) HWY_ATTR {
      return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    };
    const FloatVec s1 = add_four(v[4], v[5], v[6], v[7]);
    if constexpr (kVecs == 8) {
      return add_halves(s0, s1);
    } else {
      static_assert(kVecs == 16);
      const FloatVec s2 = add_four(v[8], v[9], v[10], v[11]);
      const FloatVec s3 = add_four(v[12], v[13], v[14], v[15]);
      const FloatVec even = add_halves(s0, s2);  // blocks s0, s0, s2, s2
      const FloatVec odd = add_halves(s1, s3);
      return hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)), hn::Add(even, hn::SwapAdjacentBlocks(even)));
    }
  }
#endif
}

/// logits[j * stride + r] = q_r . k_j for kRows rows of queries and kKeys keys where they are in the cache. Writes
/// zeros up to a whole vector past the last row.
template <class Type, int kRows, int kKeys>
HWY_NOINLINE void DotRows(const float* HWY_RESTRICT q, std::int64_t head_dim, const char* const* k_rows,
                          float* HWY_RESTRICT logits, std::int64_t stride) {
  using Storage = typename Type::Storage;
  const FloatTag d;
  FloatVec acc[kKeys][kRows];
  const Storage* keys[kKeys];
#pragma GCC unroll 16
  for (int j = 0; j < kKeys; ++j) {
    keys[j] = reinterpret_cast<const Storage*>(k_rows[j]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[j][r] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < head_dim; i += kLanes) {
    FloatVec k[kKeys];
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) k[j] = LoadFloats(Type(), keys[j] + i);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const FloatVec row = hn::Load(d, q + r * head_dim + i);
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) acc[j][r] = hn::MulAdd(k[j], row, acc[j][r]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kKeys; ++j) {
#pragma GCC unroll 16
    for (int first = 0; first < kRows; first += static_cast<int>(kLanes)) {
      FloatVec sums[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < static_cast<int>(kLanes); ++r) {
        sums[r] = first + r < kRows ? acc[j][first + r < kRows ? first + r : 0] : hn::Zero(d);
      }
      hn::StoreU(SumOfEach(sums), d, logits + j * stride + first);
    }
  }
}

/// Logits for a tile of few lanes, all of which are active.
template <class Type>
void LogitsByRow(const Tile& tile, Prefetcher& prefetcher) {
  const Chunk& chunk = *tile.chunk;
  if constexpr (std::is_same_v<Type, F8>) {
    if (HasNanCodes(chunk.k_rows, chunk.num_keys, 0, tile.head_dim)) return LogitsByRow<F8WithNan>(tile, prefetcher);
  }
  const FloatTag d;
  const std::int64_t lanes = tile.num_rows * tile.group;
  constexpr std::int64_t step = 4;  // keys; a multiple of what a product takes
  constexpr std::int64_t stride = few_lanes + kLanes;
  alignas(64) float logits[step * stride];
  for (std::int64_t key = 0; key < chunk.num_keys; key += step) {
    const char* k_rows[step];  // of the last key for those past it: the results have room and are not read
    for (std::int64_t j = 0; j < step; ++j) k_rows[j] = chunk.k_rows[std::min(key + j, chunk.num_keys - 1)];
    ForEachRowGroup(lanes, [&](std::int64_t first, auto size) {
      constexpr int kRows = decltype(size)::value;
      constexpr int kKeys = beside_rows<kRows>;
      for (std::int64_t j = 0; j < step; j += kKeys) {
        DotRows<Type, kRows, kKeys>(tile.scratch.q + first * tile.head_dim, tile.head_dim, k_rows + j,
                                    logits + j * stride + first, stride);
        prefetcher.advance(std::int64_t{kRows} * kKeys * tile.head_dim);
      }
    });
    for (std::int64_t j = 0; j < step; ++j) {
      for (std::int64_t vec = 0; vec < tile.num_vecs; ++vec) {
        hn::Store(hn::Load(d, logits + j * stride + vec * kLanes), d, tile.vec_s(vec) + (key + j) * kLanes);
      }
    }
  }
}

/// o[r][i] = alpha[r] * o[r][i] + sum over keys of p[key * few_lanes + r] * v[key][dim + i], for kRows rows of the
/// output and kVecs vectors of dims. With kSkipZeros a probability of 0 skips its product, so that a value that is not
/// finite reaches only the rows that attend to it. Without, false tells that there may be such a value; then nothing is
/// written.
template <class Type, int kRows, int kVecs, bool kSkipZeros>
HWY_NOINLINE bool AddValuesToRows(const float* HWY_RESTRICT p, const float* HWY_RESTRICT alpha, std::int64_t num_keys,
                                  const char* const* v_rows, std::int64_t dim, float* HWY_RESTRICT o,
                                  std::int64_t head_dim) {
  using Storage = typename Type::Storage;
  const FloatTag d;
  FloatVec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kVecs; ++i) {
      acc[r][i] = hn::Mul(hn::Load(d, o + r * head_dim + i * kLanes), hn::Set(d, alpha[r]));
    }
  }
  for (std::int64_t key = 0; key < num_keys; ++key) {
    const auto* HWY_RESTRICT from = reinterpret_cast<const Storage*>(v_rows[key]) + dim;
    FloatVec v[kVecs];
#pragma GCC unroll 16
    for (int i = 0; i < kVecs; ++i) v[i] = LoadFloats(Type(), from + i * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float probability = p[key * few_lanes + r];
      if (kSkipZeros && probability == 0.0f) continue;
#pragma GCC unroll 16
      for (int i = 0; i < kVecs; ++i) acc[r][i] = hn::MulAdd(hn::Set(d, probability), v[i], acc[r][i]);
    }
  }
  if (!kSkipZeros) {
    // Any value that is not finite makes the sums of every row so, whatever its probability.
    FloatVec zero = hn::Mul(acc[0][0], hn::Zero(d));
#pragma GCC unroll 16
    for (int i = 1; i < kVecs; ++i) zero = hn::MulAdd(acc[0][i], hn::Zero(d), zero);
    if (!hn::AllFalse(d, hn::IsNaN(zero))) return false;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kVecs; ++i) hn::Store(acc[r][i], d, o + r * head_dim + i * kLanes);
  }
  return true;
}

/// AddValues for a tile of few lanes.
template <class Type>
void AddValuesByRow(const Tile& tile, Prefetcher& prefetcher) {
  const Chunk& chunk = *tile.chunk;
  if constexpr (std::is_same_v<Type, F8>) {
    if (HasNanCodes(chunk.v_rows, chunk.num_keys, 0, tile.head_dim)) {
      return AddValuesByRow<F8WithNan>(tile, prefetcher);
    }
  }
  const FloatTag d;
  const std::int64_t lanes = tile.num_rows * tile.group;
  float* p = tile.scratch.v;  // [key][few_lanes]; the values themselves are not copied
  for (std::int64_t key = 0; key < chunk.num_keys; ++key) {
    for (std::int64_t vec = 0; vec < tile.num_vecs; ++vec) {
      hn::Store(hn::Load(d, tile.vec_s(vec) + key * kLanes), d, p + key * few_lanes + vec * kLanes);
    }
  }
  float one[few_lanes];
  std::fill_n(one, few_lanes, 1.0f);
  for (std::int64_t key = 0; key < chunk.num_keys; key += value_sweep_keys) {
    const std::int64_t num_keys = std::min(value_sweep_keys, chunk.num_keys - key);
    const float* alpha = key == 0 ? tile.scratch.alpha : one;
    ForEachRowGroup(lanes, [&](std::int64_t first, auto size) {
      constexpr int kRows = decltype(size)::value;
      constexpr int kVecs = beside_rows<kRows>;
      const auto add = [&](std::int64_t row, std::int64_t dim, auto product) {
        return product(p + key * few_lanes + row, alpha + row, num_keys, chunk.v_rows + key, dim,
                       tile.scratch.o + row * tile.head_dim + dim, tile.head_dim);
      };
      for (std::int64_t dim = 0; dim < tile.head_dim; dim += kVecs * kLanes) {
        if (!add(first, dim, AddValuesToRows<Type, kRows, kVecs, false>)) {
          for (int r = 0; r < kRows; ++r) add(first + r, dim, AddValuesToRows<Type, 1, kVecs, true>);
        }
        prefetcher.advance(std::int64_t{kRows} * kVecs * kLanes * num_keys);
      }
    });
  }
}
