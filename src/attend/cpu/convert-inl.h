// SPDX-License-Identifier: Apache-2.0
//
// Loads of the storage types as floats, and rounding. Included by kernel.cpp once per instruction set, inside its
// namespace; hence no include guard.

struct Bf16 {
  static constexpr DType dtype = DType::bf16;
  using Storage = std::uint16_t;
};
struct F16 {
  static constexpr DType dtype = DType::f16;
  using Storage = std::uint16_t;
};
/// FP8 E4M3 without NaN codes, which are looked for before.
struct F8 {
  static constexpr DType dtype = DType::f8_e4m3;
  using Storage = std::uint8_t;
};
/// Any FP8 E4M3.
struct F8WithNan : F8 {};

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

#if KVSIEVE_HAS_F16
/// FP8 E4M3 bits are those of a float16 number 2^8 times smaller, subnormals included: sign and magnitude moved to
/// their places.
HWY_INLINE FloatVec LoadFloats(F8, const std::uint8_t* HWY_RESTRICT from) {
  const FloatTag d;
  const hn::Rebind<std::int16_t, FloatTag> di16;
  const hn::Rebind<std::int8_t, FloatTag> di8;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const auto bits = hn::PromoteTo(di16, hn::BitCast(di8, hn::LoadU(ByteTag(), from)));  // the sign fills the upper bits
  const auto half = hn::And(hn::ShiftLeft<7>(bits), hn::Set(di16, static_cast<std::int16_t>(0xBF80)));
  return hn::Mul(hn::PromoteTo(d, hn::BitCast(dh, half)), hn::Set(d, 256.0f));
}
#else
/// FP8 E4M3 bits moved 20 places up, and 120 added to the exponent, are w = 2^(e - 7) * (1 + m / 8): right but for
/// exponent field 0, whose numbers m * 2^-9 are 2 w - 2^-6. That is the smaller of the two there, and the larger
/// elsewhere. (Scaling a subnormal float up instead would be slow on some CPUs, and wrong where subnormals are
/// flushed.)
HWY_INLINE FloatVec LoadFloats(F8, const std::uint8_t* HWY_RESTRICT from) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<std::int8_t, FloatTag> di8;
  const auto bits = hn::PromoteTo(di, hn::BitCast(di8, hn::LoadU(ByteTag(), from)));  // the sign fills the upper bits
  const auto magnitude = hn::And(hn::ShiftLeft<20>(bits), hn::Set(di, 0x07F00000));
  const FloatVec w = hn::BitCast(d, hn::Add(magnitude, hn::Set(di, 120 << 23)));
  const FloatVec value = hn::Min(w, hn::MulAdd(w, hn::Set(d, 2.0f), hn::Set(d, -0x1p-6f)));
  return hn::Or(value, hn::BitCast(d, hn::And(bits, hn::Set(di, std::numeric_limits<std::int32_t>::min()))));
}
#endif

HWY_INLINE FloatVec LoadFloats(F8WithNan, const std::uint8_t* HWY_RESTRICT from) {
  const FloatTag d;
  const IntTag di;
  const auto bits = hn::And(hn::BitCast(di, hn::PromoteTo(UintTag(), hn::LoadU(ByteTag(), from))), hn::Set(di, 0x7F));
  const auto is_nan = hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(di, hn::Eq(bits, hn::Set(di, 0x7F)))));
  return hn::IfThenElse(is_nan, hn::Set(d, std::numeric_limits<float>::quiet_NaN()), LoadFloats(F8(), from));
}

/// True when elements [begin, end) of some row of FP8 numbers hold a NaN code. Both are multiples of 32.
HWY_INLINE bool HasNanCodes(const char* const* rows, std::int64_t num_rows, std::int64_t begin, std::int64_t end) {
  const hn::CappedTag<std::uint8_t, 32> d8;
  const std::int64_t step = static_cast<std::int64_t>(hn::MaxLanes(d8));
  auto found = hn::Zero(d8);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(rows[r]);
    for (std::int64_t i = begin; i < end; i += step) {
      const auto nan = hn::Eq(hn::And(hn::LoadU(d8, from + i), hn::Set(d8, 0x7F)), hn::Set(d8, 0x7F));
      found = hn::Or(found, hn::VecFromMask(d8, nan));
    }
  }
  return !hn::AllTrue(d8, hn::Eq(found, hn::Zero(d8)));
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
