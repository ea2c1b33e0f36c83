// SPDX-License-Identifier: Apache-2.0
//
// The product with V for tiles of few lanes. Included by kernel.cpp once per instruction set, inside its
// namespace; hence no include guard.

/// Tiles of at most this many lanes (decode) keep their output by rows and multiply along the head dim instead: V is
/// used where it is in the cache, with neither a copy nor lanes that pad. FP8 is dearer to convert, up to twice here.
constexpr std::int64_t few_lanes = 16;

/// o[lane][dim ...] = alpha * o + sum over the chunk's keys of p * v, for kRows lanes and one vector of dims.
template <class Type, int kRows>
HWY_NOINLINE void AddValuesToRows(const Tile& tile, const std::int16_t* rows, std::int64_t dim) {
  using Storage = typename Type::Storage;
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
  FloatVec check = hn::Zero(d);
  for (std::int64_t key = 0; key < num_keys; ++key) {
    const FloatVec value = LoadFloats(Type(), reinterpret_cast<const Storage*>(tile.chunk->v_rows[key]) + dim);
    check = hn::MulAdd(value, hn::Zero(d), check);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(hn::Set(d, p[r][key * kLanes]), value, acc[r]);
  }
  const bool finite = hn::AllFalse(d, hn::IsNaN(check));
  for (int r = 0; r < kRows; ++r) {
    float* const o = tile.scratch.o + rows[r] * tile.head_dim + dim;
    if (!finite) {  // a value that is not finite must reach only the rows that attend to it
      acc[r] = hn::Mul(hn::Load(d, o), hn::Set(d, tile.scratch.alpha[rows[r]]));
      for (std::int64_t key = 0; key < num_keys; ++key) {
        const float probability = p[r][key * kLanes];
        if (probability == 0.0f) continue;
        const FloatVec value = LoadFloats(Type(), reinterpret_cast<const Storage*>(tile.chunk->v_rows[key]) + dim);
        acc[r] = hn::MulAdd(hn::Set(d, probability), value, acc[r]);
      }
    }
    hn::Store(acc[r], d, o);
  }
}

/// AddValues for a tile of few lanes.
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
  for (std::int64_t dim = 0; dim < tile.head_dim; dim += kLanes) {
    std::int64_t done = 0;
    const auto add = [&](auto rows) {
      AddValuesToRows<Type, decltype(rows)::value>(tile, lanes + done, dim);
      done += decltype(rows)::value;
    };
    if (num_lanes == 12) add(std::integral_constant<int, 12>());
    while (num_lanes - done >= 8) add(std::integral_constant<int, 8>());
    if (num_lanes - done >= 4) add(std::integral_constant<int, 4>());
    if (num_lanes - done >= 2) add(std::integral_constant<int, 2>());
    if (num_lanes - done >= 1) add(std::integral_constant<int, 1>());
    prefetcher.advance(tile.num_active * kLanes * tile.chunk->num_keys);
  }
}
