// SPDX-License-Identifier: Apache-2.0
//
// 16 (token, head) rows of a warp: their queries, what they may see, and their attention state. Lane l has rows l / 4
// and l / 4 + 8 (index i = 0, 1), and of 16 keys the four at 8 n + 2 (l % 4) and the one after (n = 0, 1), which is how
// mma.sync deals its operands and results.
#pragma once

#include <cmath>

#include "attend/cuda_sm90_decode/queries.cuh"
#include "cuda/convert.cuh"

namespace kvsieve::cuda::decode {

/// What is known of a lane's four keys of a unit.
struct UnitKeys {
  std::int32_t position[2];
  std::uint32_t members[2];
  bool some;  ///< some row of the warp chose some key of the unit
  bool all;   ///< all rows of the warp chose and may see all keys of the unit
};

template <class Traits>
struct RowTile {
  using T = typename Traits::T;
  static constexpr int dim_tiles = Traits::dim / 8;

  Queries<Traits> queries;
  float scale[2];            ///< takes logits to base 2
  std::uint32_t row_bit[2];  ///< membership bits; 0 for padding
  std::int32_t row_limit[2];

  // Sums are of this lane's keys alone. Probabilities are relative to 2 to the reference, which follows the maximum of
  // the logits at a distance.
  float o[dim_tiles][4];
  float reference[2];
  float sum[2];

  /// Once the rows are known and the queries have come. `first_row`: of the tile's.
  __device__ void begin(const Parameters& p, const Work& work, int first_row, const TileRow* rows, float call_scale) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float factor[2] = {1.0f, 1.0f};
    queries.to_f16(p.attend.problem.q.dtype, factor);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = call_scale * factor[i];
      const int token = TokenHead(p.schedule.group, first_row + lane / 4 + 8 * i).token;
      const bool real = token < work.num_rows;
      row_bit[i] = real ? 1u << token : 0u;
      row_limit[i] = real ? rows[token].limit : -1;
      reference[i] = -INFINITY;
      sum[i] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < dim_tiles; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[d][i] = 0.0f;
    }
  }

  /// Takes logits to base 2; those of keys that a row does not attend to become -infinity.
  __device__ void scale_and_mask(float (&s)[2][4], const UnitKeys& keys) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= scale[i / 2];
    }
    if (keys.all) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool attends = (keys.members[n] & row_bit[i / 2]) != 0 && keys.position[n] + i % 2 <= row_limit[i / 2];
        if (!attends) s[n][i] = -INFINITY;
      }
    }
  }

  /// One step of the online softmax: logits to probabilities, as the operand of the product with V.
  __device__ void softmax(float (&s)[2][4], std::uint32_t (&probabilities)[4]) {
    constexpr float distance = 8.0f;  // a probability is 2^8 at most: no trouble for f16, and seldom a move
    float most[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(fmaxf(s[0][2 * i], s[0][2 * i + 1]), fmaxf(s[1][2 * i], s[1][2 * i + 1]));
    }
    const bool far = most[0] > reference[0] + distance || most[1] > reference[1] + distance;
    if (__any_sync(0xFFFFFFFFu, far)) move_references(most, distance);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // A row that has seen no key keeps -infinity; 0 in its place keeps -infinity - -infinity out of the exponent.
      const float shift = reference[i] == -INFINITY ? 0.0f : reference[i];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float first = exp2_approximate(s[n][2 * i] - shift);
        const float second = exp2_approximate(s[n][2 * i + 1] - shift);
        sum[i] += first + second;
        probabilities[2 * n + i] = pack2<T>(first, second);
      }
    }
  }

  /// Adds up the lanes that share a row.
  __device__ void reduce_sums() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 1);
      sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 2);
    }
  }

 private:
  __device__ void move_references(float (&most)[2], float distance) {
    float alpha[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], 2));
      const bool moves = most[i] > reference[i] + distance;
      alpha[i] = moves ? exp2_approximate(reference[i] - most[i]) : 1.0f;
      if (moves) reference[i] = most[i];
      sum[i] *= alpha[i];
    }
#pragma unroll
    for (int d = 0; d < dim_tiles; ++d) {
      o[d][0] *= alpha[0];
      o[d][1] *= alpha[0];
      o[d][2] *= alpha[1];
      o[d][3] *= alpha[1];
    }
  }
};

}  // namespace kvsieve::cuda::decode
