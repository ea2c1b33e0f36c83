// SPDX-License-Identifier: Apache-2.0
//
// The two products of a chunk: logits, and values added to the output. Included by kernel.cpp once per instruction set,
// inside its namespace; hence no include guard.

/// Cuts `count` columns (a multiple of 8) into what a product takes at a time and calls one(first, constant<size>): 8,
/// 6 and 4 columns for 1, 2 and 3 vectors of lanes. That is enough accumulators to hide the latency of a multiply-add,
/// few enough for 16 registers, and fewer loads than multiply-adds.
template <int kVecs, class One>
void ForEachColumnGroup(std::int64_t count, const One& one) {
  std::int64_t i = 0;
  if constexpr (kVecs == 2) {
    for (; count - i >= 6 && count - i != 8; i += 6) one(i, std::integral_constant<int, 6>());
  }
  constexpr int kCols = kVecs == 1 ? 8 : 4;
  for (; i < count; i += kCols) one(i, std::integral_constant<int, kCols>());
}

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

/// Work of the two products for the current chunk: multiply-adds, of vectors, or of single lanes in a tile of few.
std::int64_t ProductWork(const Tile& tile) {
  if (tile.by_row) return 2 * tile.num_rows * tile.group * tile.head_dim * tile.chunk->num_keys;
  return tile.num_active * tile.head_dim * (PaddedKeys(tile) + tile.chunk->num_keys);
}

/// s[vector][key][lane] = q . k of the chunk, for the active vectors. Keys are copied out of the cache before: all of
/// them when several groups of vectors use the copies, a product's own right before it when there is one group, so that
/// its copies stay in the L1 cache.
template <class Math, class Type>
void Logits(const Tile& tile, Prefetcher& prefetcher) {
  const std::int64_t words = Math::pairs ? tile.head_dim / 2 : tile.head_dim;
  const std::int64_t padded_keys = PaddedKeys(tile);
  const bool one_group = tile.num_active <= 3;
  if (!one_group) GatherKeys<Math, Type>(tile, 0, padded_keys);
  ForEachVecGroup(tile.num_active, [&](std::int64_t first, auto size) {
    constexpr int kVecs = decltype(size)::value;
    const float* panels[kVecs];
    for (int i = 0; i < kVecs; ++i) panels[i] = tile.scratch.q + tile.active[first + i] * kLanes * words;
    ForEachColumnGroup<kVecs>(padded_keys, [&](std::int64_t key, auto num_columns) {
      constexpr int kCols = decltype(num_columns)::value;
      if (one_group) GatherKeys<Math, Type>(tile, key, kCols);
      const float* copies = one_group ? tile.scratch.k : tile.scratch.k + key * words;
      const float* columns[kCols];
      float* out[kVecs];
      for (int j = 0; j < kCols; ++j) columns[j] = copies + j * words;
      for (int i = 0; i < kVecs; ++i) out[i] = tile.vec_s(tile.active[first + i]) + key * kLanes;
      Math::template Product<kVecs, kCols, 1, false>(static_cast<std::size_t>(words), panels, columns, nullptr, out);
      prefetcher.advance(std::int64_t{kVecs} * kCols * tile.head_dim);
    });
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
    const float* panels[kVecs];
    const float* alpha[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      panels[i] = tile.vec_s(tile.active[first + i]);
      alpha[i] = tile.scratch.alpha + tile.active[first + i] * kLanes;
    }
    ForEachColumnGroup<kVecs>(tile.head_dim, [&](std::int64_t dim, auto num_columns) {
      constexpr int kCols = decltype(num_columns)::value;
      const float* columns[kCols];
      float* out[kVecs];
      for (int j = 0; j < kCols; ++j) columns[j] = tile.scratch.v + (dim + j) / 16 * panel_words + (dim + j) % 16;
      for (int i = 0; i < kVecs; ++i) out[i] = tile.vec_o(tile.active[first + i]) + dim * kLanes;
      Math::template Product<kVecs, kCols, 16, true>(static_cast<std::size_t>(key_words), panels, columns, alpha, out);
      prefetcher.advance(std::int64_t{kVecs} * kCols * num_keys);
    });
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
