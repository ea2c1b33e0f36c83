// SPDX-License-Identifier: Apache-2.0
//
// The product with V for tiles of few lanes. Included by kernel.cpp once per instruction set, inside its
// namespace; hence no include guard.

/// Tiles of at most this many lanes that would leave a vector part empty (decode with 12 heads) keep their output by
/// rows and multiply along the head dim instead: 12 rows then cost 12 rows, not 16.
constexpr std::int64_t few_lanes = 16;

/// Copies dims [dim, dim + value_slice) of the chunk's values as floats [key][value_slice]; true when all are finite.
template <class Type>
bool GatherValueSlice(const Tile& tile, std::int64_t dim) {
  const Chunk& chunk = *tile.chunk;
  if constexpr (std::is_same_v<Type, F8>) {
    if (HasNanCodes(chunk.v_rows, chunk.num_keys, dim, dim + value_slice)) {
      return GatherValueSlice<F8WithNan>(tile, dim);
    }
  }
  using Storage = typename Type::Storage;
  const FloatTag d;
  FloatVec check = hn::Zero(d);
  float* HWY_RESTRICT to = tile.scratch.v;
  for (std::int64_t key = 0; key < chunk.num_keys; ++key, to += value_slice) {
    const auto* HWY_RESTRICT from = reinterpret_cast<const Storage*>(chunk.v_rows[key]) + dim;
    for (std::int64_t i = 0; i < value_slice; i += kLanes) {
      const FloatVec value = LoadFloats(Type(), from + i);
      if constexpr (!std::is_same_v<Type, F8>) check = hn::MulAdd(value, hn::Zero(d), check);
      hn::Store(value, d, to + i);
    }
  }
  return hn::AllFalse(d, hn::IsNaN(check));
}

/// o[lane][dim ...] = alpha * o + sum over the chunk's keys of p * v, for kRows lanes and two vectors of dims, of which
/// `v` is the first key's copy. With kSkipZeros a probability of 0 skips its product, so that a value that is not
/// finite reaches only the rows that attend to it.
template <int kRows, bool kSkipZeros>
HWY_NOINLINE void AddValuesToRows(const Tile& tile, const std::int16_t* rows, std::int64_t dim,
                                  const float* HWY_RESTRICT v) {
  const FloatTag d;
  const std::int64_t num_keys = tile.chunk->num_keys;
  FloatVec acc0[kRows];
  FloatVec acc1[kRows];
  const float* p[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t lane = rows[r];
    const FloatVec alpha = hn::Set(d, tile.scratch.alpha[lane]);
    const float* o = tile.scratch.o + lane * tile.head_dim + dim;
    p[r] = tile.vec_s(lane / kLanes) + lane % kLanes;
    acc0[r] = hn::Mul(hn::Load(d, o), alpha);
    acc1[r] = hn::Mul(hn::Load(d, o + kLanes), alpha);
  }
  for (std::int64_t key = 0; key < num_keys; ++key) {
    const FloatVec v0 = hn::Load(d, v + key * value_slice);
    const FloatVec v1 = hn::Load(d, v + key * value_slice + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float probability = p[r][key * kLanes];
      if (kSkipZeros && probability == 0.0f) continue;
      acc0[r] = hn::MulAdd(hn::Set(d, probability), v0, acc0[r]);
      acc1[r] = hn::MulAdd(hn::Set(d, probability), v1, acc1[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* o = tile.scratch.o + rows[r] * tile.head_dim + dim;
    hn::Store(acc0[r], d, o);
    hn::Store(acc1[r], d, o + kLanes);
  }
}

/// Splits rows into runs of 6 (4 + 4 rather than 6 + 2), 4, 2 and 1 and calls one(first index, constant<size>).
template <class One>
void ForEachRowGroup(std::int64_t count, const One& one) {
  std::int64_t i = 0;
  for (; count - i >= 6 && count - i != 8; i += 6) one(i, std::integral_constant<int, 6>());
  for (; count - i >= 4; i += 4) one(i, std::integral_constant<int, 4>());
  for (; count - i >= 2; i += 2) one(i, std::integral_constant<int, 2>());
  if (i < count) one(i, std::integral_constant<int, 1>());
}

/// AddValues for a tile of few lanes, with the copying of V.
template <class Type>
void AddValuesByRow(const Tile& tile, Prefetcher& prefetcher) {
  std::int16_t lanes[few_lanes];
  std::int64_t num_lanes = 0;
  for (std::int64_t a = 0; a < tile.num_active; ++a) {
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t lane = tile.active[a] * kLanes + i;
      if (lane < tile.num_rows * tile.group) lanes[num_lanes++] = static_cast<std::int16_t>(lane);
    }
  }
  constexpr std::int64_t step = 2 * kLanes;
  static_assert(value_slice % step == 0);
  bool finite = true;
  for (std::int64_t dim = 0; dim < tile.head_dim; dim += step) {
    if (dim % value_slice == 0) finite = GatherValueSlice<Type>(tile, dim);
    const float* v = tile.scratch.v + dim % value_slice;
    ForEachRowGroup(num_lanes, [&](std::int64_t first, auto size) {
      constexpr int kRows = decltype(size)::value;
      if (finite) {
        AddValuesToRows<kRows, false>(tile, lanes + first, dim, v);
      } else {
        AddValuesToRows<kRows, true>(tile, lanes + first, dim, v);
      }
    });
    prefetcher.advance(tile.num_active * kLanes * tile.chunk->num_keys * 2);
  }
}
