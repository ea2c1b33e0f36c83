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
