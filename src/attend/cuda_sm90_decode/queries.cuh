// SPDX-License-Identifier: Apache-2.0
//
// The queries of a warp: 16 (token, head) rows as operands of mma.sync, in registers.
#pragma once

#include "attend/cuda_sm90_decode/traits.cuh"
#include "cuda/convert.cuh"

namespace kvsieve::cuda::decode {

/// A step of the product multiplies 16 dims. Which dims these are, and in what order, is free as long as queries and
/// keys agree: of every 64 dims lane l has the 16 from 16 (l % 4) on, in both, and so reads them as whole pieces.
template <class Traits>
struct Queries {
  static constexpr int steps = Traits::dim / 16;
  std::uint32_t a[steps][4];  ///< words 2s, 2s + 1 of the lane's 16 dims for rows l / 4 (0, 2), l / 4 + 8 (1, 3)

  /// Word `word` (0..7) of the 16 dims of the j-th 64, for row l / 4 + 8 i.
  __device__ std::uint32_t& word(int j, int i, int word) { return a[4 * j + word / 2][i + 2 * (word & 1)]; }

  /// Starts loading; zeros for padding rows. FP8 queries come as they are, in the first half of each 16 dims' words.
  __device__ void load(const Parameters& p, const Work& work, int first_row) {
    const RowHeads& q = p.attend.problem.q;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const TokenHead row(p.schedule.group, first_row + lane / 4 + 8 * i);
      const bool real = row.token < work.num_rows;
      const std::int64_t element = (work.row_begin + row.token) * q.stride_row +
                                   (work.kv_head * p.schedule.group.size + row.head) * q.stride_head + lane % 4 * 16;
      const bool bytes = Traits::f8 && q.dtype == DType::f8_e4m3;
      const auto* const from = static_cast<const unsigned char*>(q.data) + element * (bytes ? 1 : 2);
#pragma unroll
      for (int j = 0; j < steps / 4; ++j) {
        uint4 low{0, 0, 0, 0};
        uint4 high{0, 0, 0, 0};
        if (real && bytes) {  // rows start at multiples of 8 bytes
          const uint2 first = *reinterpret_cast<const uint2*>(from + 64 * j);
          const uint2 second = *reinterpret_cast<const uint2*>(from + 64 * j + 8);
          low = {first.x, first.y, second.x, second.y};
        } else if (real) {
          low = *reinterpret_cast<const uint4*>(from + 128 * j);
          high = *reinterpret_cast<const uint4*>(from + 128 * j + 16);
        }
        word(j, i, 0) = low.x;
        word(j, i, 1) = low.y;
        word(j, i, 2) = low.z;
        word(j, i, 3) = low.w;
        word(j, i, 4) = high.x;
        word(j, i, 5) = high.y;
        word(j, i, 6) = high.z;
        word(j, i, 7) = high.w;
      }
    }
  }

  /// To f16, for a product with FP8 keys: `factor[i]` is what the logits of row l / 4 + 8 i then have to be multiplied
  /// by. bf16 has a wider range than f16: a row is scaled by a power of two that takes its largest element to [2^14,
  /// 2^15), so that all that is lost lies 2^-38 and more below that one.
  __device__ void to_f16(DType dtype, float (&factor)[2]) {
    if constexpr (Traits::f8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (dtype == DType::f8_e4m3) {
#pragma unroll
          for (int j = 0; j < steps / 4; ++j) {
#pragma unroll
            for (int w = 3; w >= 0; --w) {
              const std::uint32_t bytes = word(j, i, w);
              word(j, i, 2 * w) = widen_f8x2<__half>(static_cast<std::uint16_t>(bytes & 0xFFFF));
              word(j, i, 2 * w + 1) = widen_f8x2<__half>(static_cast<std::uint16_t>(bytes >> 16));
            }
          }
        } else if (dtype == DType::bf16) {
          scale_row(i, factor[i]);
        }
      }
    }
  }

 private:
  __device__ void scale_row(int i, float& factor) {
    std::uint32_t most = 0;  // as bits, without the sign; they order as the numbers do
#pragma unroll
    for (int j = 0; j < steps / 4; ++j) {
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const std::uint32_t pair = word(j, i, w);
        most = max(most, max(pair & 0x7FFF, pair >> 16 & 0x7FFF));
      }
    }
    most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    const int biased = static_cast<int>(most >> 7);  // exponent of bf16 and float32
    int shift = biased == 0 || biased == 255 ? 0 : biased - 127 - 14;
    if (biased == 0 && most != 0) shift = -100;  // subnormal
    shift = max(shift, -100);
    factor = __int_as_float((127 + shift) << 23);
    const float inverse = __int_as_float((127 - shift) << 23);
#pragma unroll
    for (int j = 0; j < steps / 4; ++j) {
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const std::uint32_t pair = word(j, i, w);
        const float low = __int_as_float(static_cast<int>(pair << 16));
        const float high = __int_as_float(static_cast<int>(pair & 0xFFFF0000u));
        word(j, i, w) = pack2<__half>(low * inverse, high * inverse);
      }
    }
  }
};

}  // namespace kvsieve::cuda::decode
