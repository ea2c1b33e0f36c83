// SPDX-License-Identifier: Apache-2.0
//
// A warp of the decode kernel: one or two times 16 (token, head) rows and a share of the tile's keys, 16 keys at a
// time.
#pragma once

#include "attend/cuda_sm90_decode/key_ring.cuh"
#include "attend/cuda_sm90_decode/row_tile.cuh"
#include "cuda/convert.cuh"

namespace kvsieve::cuda::decode {

template <class Traits>
struct KeyWarp {
  using T = typename Traits::T;
  static constexpr int row_tiles = Traits::row_tiles;

  const Parameters& p;
  int lane = static_cast<int>(threadIdx.x) % 32;
  RowTile<Traits> tiles[row_tiles];
  std::uint32_t warp_bits;  ///< membership bits of all rows of the warp
  std::int32_t warp_limit;  ///< the smallest of their limits

  __device__ explicit KeyWarp(const Parameters& parameters) : p(parameters) {}

  __device__ void load_queries(const Work& work, int row_warp) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) tiles[t].queries.load(p, work, row_warp * Traits::warp_rows + 16 * t);
  }

  /// Once the rows are known and the queries have come.
  __device__ void begin(const Work& work, int row_warp, const TileRow* rows) {
    constexpr float log2_e = 1.44269504088896340736f;
    const AttentionProblem& problem = p.attend.problem;
    const float call_scale = problem.softmax_scale.get() * problem.k_scale.get() * log2_e;
    std::uint32_t bits = 0;
    std::int32_t least = 0x7FFFFFFF;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
      tiles[t].begin(p, work, row_warp * Traits::warp_rows + 16 * t, rows, call_scale);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        bits |= tiles[t].row_bit[i];
        if (tiles[t].row_bit[i] != 0) least = min(least, tiles[t].row_limit[i]);
      }
    }
    warp_bits = __reduce_or_sync(0xFFFFFFFFu, bits);
    warp_limit = __reduce_min_sync(0xFFFFFFFFu, least);
  }

  /// What the warp's rows may see of a unit's keys.
  __device__ UnitKeys look(const unsigned char* shared, int unit) const {
    const auto* const blocks = reinterpret_cast<const KeyBlock*>(shared + SharedMap::entries_at);
    UnitKeys keys;
    bool all = true;
    std::uint32_t some = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int key = unit * unit_keys + n * 8 + lane % 4 * 2;
      const KeyBlock& block = blocks[key >> p.attend.block_shift];
      keys.position[n] = block.position + (key & (static_cast<int>(p.attend.problem.block_size) - 1));
      keys.members[n] = block.members;
      all = all && (block.members & warp_bits) == warp_bits && keys.position[n] < warp_limit;
      some |= block.members;
    }
    keys.some = __any_sync(0xFFFFFFFFu, (some & warp_bits) != 0);
    keys.all = !__any_sync(0xFFFFFFFFu, !all);
    return keys;
  }

  /// A lane's 16 dims, as in Queries, of row l / 4 of 8 keys from `first` and the j-th 64 dims of a K tile.
  __device__ void load_key(const unsigned char* tile, int first, int j, std::uint32_t (&words)[8]) const {
    const int row = first + lane / 4;
    if constexpr (Traits::f8) {
      const uint4 bytes = *reinterpret_cast<const uint4*>(tile + Traits::place(row, 4 * j + lane % 4));
      const std::uint32_t quads[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[2 * w] = widen_f8x2<T>(static_cast<std::uint16_t>(quads[w] & 0xFFFF));
        words[2 * w + 1] = widen_f8x2<T>(static_cast<std::uint16_t>(quads[w] >> 16));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 piece = *reinterpret_cast<const uint4*>(tile + Traits::place(row, 8 * j + lane % 4 * 2 + half));
        words[4 * half] = piece.x;
        words[4 * half + 1] = piece.y;
        words[4 * half + 2] = piece.z;
        words[4 * half + 3] = piece.w;
      }
    }
  }

  /// s = q k^T of a K tile, for each of the warp's row tiles.
  __device__ void logits(const unsigned char* tile, float (&s)[row_tiles][2][4]) const {
    float odd[row_tiles][2][4];  // of the odd steps: a product waits for the one before it in its own chain alone
#pragma unroll
    for (int i = 0; i < row_tiles * 8; ++i) s[i / 8][i / 4 % 2][i % 4] = odd[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll
    for (int j = 0; j < Traits::dim / 64; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        std::uint32_t words[8];
        load_key(tile, n * 8, j, words);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int t = 0; t < row_tiles; ++t) {
            multiply_add<T>(step % 2 == 0 ? s[t][n] : odd[t][n], tiles[t].queries.a[4 * j + step], words[2 * step],
                            words[2 * step + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < row_tiles * 8; ++i) s[i / 8][i / 4 % 2][i % 4] += odd[i / 8][i / 4 % 2][i % 4];
  }

  /// o += p v of a V tile. Tile d of o has dims 8 d ..; for FP8 tiles 2d, 2d + 1 have the even and the odd of dims 16 d
  /// ..: a transposed load moves pairs of bytes.
  __device__ void values(const unsigned char* tile, const std::uint32_t (&probabilities)[row_tiles][4]) {
    const std::uint32_t base = shared_address(tile);
#pragma unroll
    for (int piece = 0; piece < Traits::pieces; piece += 2) {
      std::uint32_t b[4];  // keys 0-7 and 8-15 of the first piece, then of the second
      load_matrix_x4_transposed(b, base + Traits::place(lane % 16, piece + lane / 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (Traits::f8) {
          // Bytes (key, dim), (key, dim + 1), (key + 1, dim), (key + 1, dim + 1) to pairs of keys.
          const std::uint32_t low = __byte_perm(b[2 * half], 0, 0x3120);
          const std::uint32_t high = __byte_perm(b[2 * half + 1], 0, 0x3120);
          add_values(2 * (piece + half), probabilities, widen_f8x2<T>(static_cast<std::uint16_t>(low & 0xFFFF)),
                     widen_f8x2<T>(static_cast<std::uint16_t>(high & 0xFFFF)));
          add_values(2 * (piece + half) + 1, probabilities, widen_f8x2<T>(static_cast<std::uint16_t>(low >> 16)),
                     widen_f8x2<T>(static_cast<std::uint16_t>(high >> 16)));
        } else {
          add_values(piece + half, probabilities, b[2 * half], b[2 * half + 1]);
        }
      }
    }
  }
  __device__ void add_values(int d, const std::uint32_t (&probabilities)[row_tiles][4], std::uint32_t low,
                             std::uint32_t high) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) multiply_add<T>(tiles[t].o[d], probabilities[t], low, high);
  }

  /// All keys of the ring.
  __device__ void attend(KeyRing<Traits>& ring) {
    UnitKeys keys{};
    std::uint32_t probabilities[row_tiles][4];
    // The first steps only fill the ring. There is one place for each thing to do: the code comes cold.
#pragma unroll 1
    for (int tile = 1 - min(p.schedule.slots, ring.tiles); tile < ring.tiles; ++tile) {
      ring.fill_next();
      if (tile < 0) continue;
      const unsigned char* const memory = ring.wait();
      if (tile % 2 == 0) {
        keys = look(ring.shared, ring.units.begin + tile / 2);
        if (keys.some) {
          float s[row_tiles][2][4];
          logits(memory, s);
#pragma unroll
          for (int t = 0; t < row_tiles; ++t) {
            tiles[t].scale_and_mask(s[t], keys);
            tiles[t].softmax(s[t], probabilities[t]);
          }
        }
      } else if (keys.some) {
        values(memory, probabilities);
      }
      ring.release();
    }
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) tiles[t].reduce_sums();
  }
};

}  // namespace kvsieve::cuda::decode
