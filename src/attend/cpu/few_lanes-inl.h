// SPDX-License-Identifier: Apache-2.0
//
// The product with V for tiles of few lanes. Included by kernel.cpp once per instruction set, inside its
// namespace; hence no include guard.

/// Tiles of at most this many lanes that would leave a vector part empty (decode with 12 heads) keep their output by
/// rows and multiply along the head dim instead: 12 rows then cost 12 rows, not 16.
constexpr std::int64_t few_lanes = 16;

/// Copies the chunk's values as float rows [key][value_row_words()], and notes whether all are finite.
template <class Type>
void GatherValueRows(Tile& tile) {
  if constexpr (std::is_same_v<Type, F8>) {
    if (HasNanCodes(tile.chunk->v_rows, tile.chunk->num_keys, tile.head_dim)) return GatherValueRows<F8WithNan>(tile);
  }
  using Storage = typename Type::Storage;
  const FloatTag d;
  FloatVec check = hn::Zero(d);
  for (std::int64_t key = 0; key < tile.chunk->num_keys; ++key) {
    const auto* HWY_RESTRICT from = reinterpret_cast<const Storage*>(tile.chunk->v_rows[key]);
    float* HWY_RESTRICT to = tile.scratch.v + key * value_row_words(tile.head_dim);
    for (std::int64_t i = 0; i < tile.head_dim; i += kLanes) {
      const FloatVec value = LoadFloats(Type(), from + i);
      check = hn::MulAdd(value, hn::Zero(d), check);
      hn::Store(value, d, to + i);
    }
  }
  tile.finite_values = hn::AllFalse(d, hn::IsNaN(check));
}

/// o[lane][dim ...] = alpha * o + sum over the chunk's keys of p * v, for kRows lanes and one vector of dims. With
/// kSkipZeros a probability of 0 skips its product, so that a value that is not finite reaches only the rows that
/// attend to it.
template <int kRows, bool kSkipZeros>
HWY_NOINLINE void AddValuesToRows(const Tile& tile, const std::int16_t* rows, std::int64_t dim) {
  const FloatTag d;
  const std::int64_t num_keys = tile.chunk->num_keys;
  FloatVec acc[kRows];
  const float* p[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t lane = rows[r];
    p[r] = tile.vec_s(lane / kLanes) + lane % kLanes;
    acc[r] = hn::Mul(hn::Load(d, tile.scratch.o + lane * tile.head_dim + dim), hn::Set(d, tile.scratch.alpha[lane]));
  }
  const float* v = tile.scratch.v + dim;
  const std::int64_t stride = value_row_words(tile.head_dim);
  for (std::int64_t key = 0; key < num_keys; ++key) {
    const FloatVec value = hn::Load(d, v + key * stride);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float probability = p[r][key * kLanes];
      if (kSkipZeros && probability == 0.0f) continue;
      acc[r] = hn::MulAdd(hn::Set(d, probability), value, acc[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) hn::Store(acc[r], d, tile.scratch.o + rows[r] * tile.head_dim + dim);
}

/// AddValues for a tile of few lanes.
void AddValuesByRow(const Tile& tile, Prefetcher& prefetcher) {
  std::int16_t lanes[few_lanes];
  std::int64_t num_lanes = 0;
  for (std::int64_t a = 0; a < tile.num_active; ++a) {
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t lane = tile.active[a] * kLanes + i;
      if (lane < tile.num_rows * tile.group) lanes[num_lanes++] = static_cast<std::int16_t>(lane);
    }
  }
  for (std::int64_t dim = 0; dim < tile.head_dim; dim += kLanes) {
    std::int64_t done = 0;
    const auto add = [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      if (tile.finite_values) {
        AddValuesToRows<kRows, false>(tile, lanes + done, dim);
      } else {
        AddValuesToRows<kRows, true>(tile, lanes + done, dim);
      }
      done += kRows;
    };
    if (num_lanes == 12) add(std::integral_constant<int, 12>());
    while (num_lanes - done >= 8) add(std::integral_constant<int, 8>());
    if (num_lanes - done >= 4) add(std::integral_constant<int, 4>());
    if (num_lanes - done >= 2) add(std::integral_constant<int, 2>());
    if (num_lanes - done >= 1) add(std::integral_constant<int, 1>());
    prefetcher.advance(tile.num_active * kLanes * tile.chunk->num_keys);
  }
}
