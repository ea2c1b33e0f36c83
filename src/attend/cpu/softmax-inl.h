// SPDX-License-Identifier: Apache-2.0
//
// Masks and one step of the online softmax. Included by kernel.cpp once per instruction set, inside its
// namespace; hence no include guard.

/// 2^x for x <= 0. Exactly 0 below -126.5 (so for -infinity too), NaN for NaN. Relative error below 3e-7.
HWY_INLINE FloatVec Exp2(FloatVec x) {
  const FloatTag d;
  const UintTag du;
  const FloatVec least = hn::Set(d, -127.0f);
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  x = hn::IfThenElse(hn::Lt(x, least), least, x);  // Max would drop a NaN
#else
  x = hn::Max(least, x);  // this order of operands lets NaN through
#endif
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
