// SPDX-License-Identifier: Apache-2.0
//
// Portable attend kernel: mma.sync and asynchronous copies, compute capability 8.0 and up.
//
// A thread block of 4 warps computes one tile (up to 64 or 16 (token, head) rows) for one KV head and one split of the
// tile's route, 64 keys at a time. The rows of a tile share every load of K and V; the softmax masks each row to its
// own selection. docs/kernels/cuda_portable.md draws the layouts.
//
//   rows_64: warp w owns rows 16 w .. 16 w + 15 and all 64 keys; it skips chunks that none of its rows selected.
//   rows_16: every warp owns all 16 rows and keys 16 w .. 16 w + 15; the four states are merged at the end.
//
// Stages of a chunk: load V | logits of the chunk | softmax | load K of the next chunk | values.
#pragma once

#include <algorithm>
#include <cmath>

#include "attend/cuda_portable/kernel.hpp"
#include "cuda/barrier.cuh"
#include "cuda/check.hpp"
#include "cuda/convert.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace kvsieve::cuda {

constexpr int attend_threads = 128;
constexpr int chunk_keys = 64;

/// A key of a chunk. members = 0: no row attends to it, nothing is read for it.
struct alignas(16) KeyPlace {
  std::int32_t page;
  std::int32_t slot;
  std::int32_t position;
  std::uint32_t members;
};

/// Shared memory: q [rows][D], k and v [chunk][D] of 16-bit elements, and the places of two chunks' keys. Rows are cut
/// into 16-byte units; unit u of row r lies at u ^ (r & 7), so that ldmatrix and the copies meet no bank conflict.
template <int kDim, int kRows>
struct SharedLayout {
  static constexpr int units = kDim / 8;
  static constexpr int q = 0;
  static constexpr int k = q + kRows * kDim * 2;
  static constexpr int v = k + chunk_keys * kDim * 2;
  static constexpr int places = v + chunk_keys * kDim * 2;
  static constexpr int bytes = places + 2 * chunk_keys * static_cast<int>(sizeof(KeyPlace));
  __device__ static std::uint32_t unit_offset(int row, int unit) {
    return static_cast<std::uint32_t>((row * units + (unit ^ (row & 7))) * 16);
  }
};

/// The attention state of the 16 rows that a warp works on: lane l holds rows l / 4 and l / 4 + 8.
template <int kDim>
struct WarpState {
  float o[kDim / 8][4];  ///< n-tiles of 8 dims; elements (row, dim), (row, dim + 1), (row + 8, ...)
  float max[2];
  float sum[2];
  float sum_t[2];
};

template <class T, int kDim, bool kF8, int kRowWarps>
struct AttendBlock {
  static constexpr int rows = 16 * kRowWarps;
  static constexpr int warp_keys = kRowWarps == 4 ? chunk_keys : chunk_keys / 4;
  static constexpr int key_tiles = warp_keys / 8;
  using Layout = SharedLayout<kDim, rows>;

  const AttendParameters& p;
  unsigned char* shared;
  std::int64_t tile, kv_head, split;
  std::int64_t row_begin;  ///< first query row of the tile
  int num_rows;            ///< query rows of the tile
  int group;
  int warp, lane;
  const DeviceRouteEntry* entries;
  std::int64_t num_entries;
  int warp_row, warp_key;    ///< first tile row and chunk key of the warp
  std::uint32_t row_bit[2];  ///< membership bits of this lane's two rows; 0 for padding
  std::int32_t row_limit[2];
  std::uint32_t warp_bits;  ///< of all rows of the warp

  __device__ AttendBlock(const AttendParameters& parameters, unsigned char* shared_memory)
      : p(parameters), shared(shared_memory) {
    const std::int64_t index = blockIdx.x;
    split = index % p.partials.num_splits;
    kv_head = index / p.partials.num_splits % p.problem.num_kv_heads;
    tile = index / p.partials.num_splits / p.problem.num_kv_heads;
    row_begin = tile * p.routes.tile_rows;
    num_rows = static_cast<int>(min(p.routes.tile_rows, p.problem.total_q - row_begin));
    group = static_cast<int>(p.problem.group());
    warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t route = tile * p.routes.num_lists + (p.routes.num_lists == 1 ? 0 : kv_head);
    entries = p.routes.entries + route * p.routes.capacity;
    num_entries = p.routes.counts[route];
    warp_row = kRowWarps == 4 ? warp * 16 : 0;
    warp_key = kRowWarps == 4 ? 0 : warp * warp_keys;
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + lane / 4 + 8 * i;
      const bool real = row < num_rows * group;
      row_bit[i] = real ? 1u << (row / group) : 0u;
      row_limit[i] = real ? p.routes.rows[row_begin + row / group].limit : -1;
    }
    warp_bits = __reduce_or_sync(0xFFFFFFFFu, row_bit[0] | row_bit[1]);
  }

  __device__ KeyPlace* places(int buffer) const {
    return reinterpret_cast<KeyPlace*>(shared + Layout::places) + buffer * chunk_keys;
  }

  /// Finds the keys of a chunk: one thread a key.
  __device__ void find_places(std::int64_t chunk, int buffer) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= chunk_keys) return;
    KeyPlace place{0, 0, 0, 0};
    const std::int64_t key = chunk * chunk_keys + i;
    const std::int64_t index = key >> p.block_shift;
    if (index < num_entries) {
      const DeviceRouteEntry entry = entries[index];
      const auto offset = static_cast<std::int32_t>(key & (p.problem.block_size - 1));
      place.page = entry.page;
      place.slot = entry.slot + offset;
      place.position = static_cast<std::int32_t>(entry.block * p.problem.block_size + offset);
      // Only rows whose limit reaches the key count: what no row attends to is never read, it may be anything.
      for (std::uint32_t left = entry.members; left != 0; left &= left - 1) {
        const int row = __ffs(static_cast<int>(left)) - 1;
        if (place.position <= p.routes.rows[row_begin + row].limit) place.members |= 1u << row;
      }
    }
    places(buffer)[i] = place;
  }

  /// Starts copying the chunk's rows of K or V; FP8 is widened on the way, and so is there when this returns.
  __device__ void load_rows(const KvCache& cache, int buffer, int target) const {
    const std::uint32_t to = shared_address(shared + target);
    for (int i = static_cast<int>(threadIdx.x); i < chunk_keys * Layout::units; i += attend_threads) {
      const int key = i / Layout::units;
      const int unit = i % Layout::units;
      const KeyPlace place = places(buffer)[key];
      const bool valid = place.members != 0;
      const std::int64_t element =
          place.page * cache.stride_page + kv_head * cache.stride_head + place.slot * cache.stride_token + unit * 8;
      const std::uint32_t unit_address = to + Layout::unit_offset(key, unit);
      if constexpr (kF8) {
        uint2 bits{0, 0};
        const auto* from = static_cast<const unsigned char*>(cache.data) + element;
        if (valid && p.aligned) {
          bits = __ldg(reinterpret_cast<const uint2*>(from));
        } else if (valid) {
          for (int j = 0; j < 4; ++j) bits.x |= static_cast<std::uint32_t>(from[j]) << 8 * j;
          for (int j = 0; j < 4; ++j) bits.y |= static_cast<std::uint32_t>(from[4 + j]) << 8 * j;
        }
        const uint4 wide{widen_f8x2<T>(bits.x & 0xFFFF), widen_f8x2<T>(bits.x >> 16), widen_f8x2<T>(bits.y & 0xFFFF),
                         widen_f8x2<T>(bits.y >> 16)};
        *reinterpret_cast<uint4*>(shared + target + Layout::unit_offset(key, unit)) = wide;
      } else {
        const auto* from = static_cast<const std::uint16_t*>(cache.data) + element;
        if (p.aligned) {
          copy_async_16(unit_address, valid ? from : static_cast<const std::uint16_t*>(cache.data), valid);
        } else {
          alignas(16) std::uint16_t values[8];
          for (int j = 0; j < 8; ++j) values[j] = valid ? from[j] : std::uint16_t{0};
          *reinterpret_cast<uint4*>(shared + target + Layout::unit_offset(key, unit)) =
              *reinterpret_cast<const uint4*>(values);
        }
      }
    }
    copy_async_commit();
  }

  /// Queries of the tile to shared memory, zeros in the padding rows.
  __device__ void load_queries() const {
    const RowHeads& q = p.problem.q;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kDim; i += attend_threads) {
      const int row = i / kDim;
      const int dim = i % kDim;
      T value = static_cast<T>(0.0f);
      if (row < num_rows * group) {
        const std::int64_t element =
            (row_begin + row / group) * q.stride_row + (kv_head * group + row % group) * q.stride_head + dim;
        if (q.dtype == DType::f8_e4m3) {
          const std::uint32_t pair = widen_f8x2<T>(static_cast<const unsigned char*>(q.data)[element]);
          value = *reinterpret_cast<const T*>(&pair);
        } else {
          value = static_cast<const T*>(q.data)[element];
        }
      }
      const std::uint32_t offset = Layout::unit_offset(row, dim / 8) + dim % 8 * 2;
      *reinterpret_cast<T*>(shared + Layout::q + offset) = value;
    }
  }

  /// s = q k^T of the warp's rows and keys, unscaled.
  __device__ void logits(float (&s)[key_tiles][4]) const {
    const std::uint32_t q_base = shared_address(shared + Layout::q);
    const std::uint32_t k_base = shared_address(shared + Layout::k);
#pragma unroll
    for (int n = 0; n < key_tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t a[4];
      load_matrix_x4(a, q_base + Layout::unit_offset(warp_row + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < key_tiles; n += 2) {  // 16 keys: matrices (keys 0-7, dims 0-7), (0-7, 8-15), (8-15, ...)
        std::uint32_t b[4];
        const int key = warp_key + n * 8 + lane % 8 + lane / 16 * 8;
        load_matrix_x4(b, k_base + Layout::unit_offset(key, step * 2 + lane / 8 % 2));
        multiply_add<T>(s[n], a, b[0], b[1]);
        multiply_add<T>(s[n + 1], a, b[2], b[3]);
      }
    }
  }

  /// Scales the logits and sets those of keys that a row does not attend to to -infinity.
  __device__ void mask(float (&s)[key_tiles][4], const KeyPlace* place, float scale) const {
#pragma unroll
    for (int n = 0; n < key_tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const KeyPlace& key = place[warp_key + n * 8 + lane % 4 * 2 + j % 2];
        const bool attends = (key.members & row_bit[j / 2]) != 0;  // limits are in the members already
        s[n][j] = attends ? s[n][j] * scale : -INFINITY;
      }
    }
  }

  /// One step of the online softmax: s becomes probabilities, the state moves to the new maximum.
  __device__ void softmax(float (&s)[key_tiles][4], WarpState<kDim>& state) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float max = state.max[i];
#pragma unroll
      for (int n = 0; n < key_tiles; ++n) max = fmaxf(max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, 2));
      // A row that has seen no key keeps -infinity; 0 in its place keeps -infinity - -infinity out of the exponent.
      const float shift = max == -INFINITY ? 0.0f : max;
      const float alpha = exp2_approximate(state.max[i] - shift);
      if (p.problem.lse_t.defined()) {
        const float temperature = p.problem.lse_temperature_scale;
        float sum_t = state.sum_t[i] * exp2_approximate((state.max[i] - shift) * temperature);
#pragma unroll
        for (int n = 0; n < key_tiles; ++n) {
          sum_t += exp2_approximate((s[n][2 * i] - shift) * temperature);
          sum_t += exp2_approximate((s[n][2 * i + 1] - shift) * temperature);
        }
        state.sum_t[i] = sum_t;
      }
      state.max[i] = max;
      float sum = state.sum[i] * alpha;
#pragma unroll
      for (int n = 0; n < key_tiles; ++n) {
        s[n][2 * i] = exp2_approximate(s[n][2 * i] - shift);
        s[n][2 * i + 1] = exp2_approximate(s[n][2 * i + 1] - shift);
        sum += s[n][2 * i] + s[n][2 * i + 1];
      }
      state.sum[i] = sum;  // of this lane's keys; lanes of a row are added up at the end
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        state.o[d][2 * i] *= alpha;
        state.o[d][2 * i + 1] *= alpha;
      }
    }
  }

  /// o += p v of the warp's keys.
  __device__ void add_values(const float (&s)[key_tiles][4], WarpState<kDim>& state) const {
    const std::uint32_t v_base = shared_address(shared + Layout::v);
#pragma unroll
    for (int step = 0; step < key_tiles / 2; ++step) {
      const std::uint32_t a[4] = {pack2<T>(s[2 * step][0], s[2 * step][1]), pack2<T>(s[2 * step][2], s[2 * step][3]),
                                  pack2<T>(s[2 * step + 1][0], s[2 * step + 1][1]),
                                  pack2<T>(s[2 * step + 1][2], s[2 * step + 1][3])};
      const int key = warp_key + step * 16 + lane % 16;
#pragma unroll
      for (int d = 0; d < kDim / 8; d += 2) {
        std::uint32_t b[4];
        load_matrix_x4_transposed(b, v_base + Layout::unit_offset(key, d + lane / 16));
        multiply_add<T>(state.o[d], a, b[0], b[1]);
        multiply_add<T>(state.o[d + 1], a, b[2], b[3]);
      }
    }
  }

  /// Adds up the lanes that share a row.
  __device__ void reduce_sums(WarpState<kDim>& state) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int mask = 1; mask <= 2; mask *= 2) {
        state.sum[i] += __shfl_xor_sync(0xFFFFFFFFu, state.sum[i], mask);
        state.sum_t[i] += __shfl_xor_sync(0xFFFFFFFFu, state.sum_t[i], mask);
      }
    }
  }

  /// Writes an element of a tile row's normalised output.
  __device__ void write_value(int row, int dim, float value, float v_scale) const {
    const std::int64_t q_row = row_begin + row / group;
    const std::int64_t head = kv_head * group + row % group;
    if (p.partials.out != nullptr) {
      const std::int64_t state = (q_row * p.problem.num_qo_heads + head) * p.partials.num_splits + split;
      p.partials.out[state * kDim + dim] = value;
    } else {
      store_output(p.problem, q_row, head, dim, value * v_scale);
    }
  }

  __device__ void write_lse(int row, float max, float sum, float sum_t) const {
    constexpr float ln_2 = 0.693147180559945309f;
    const std::int64_t q_row = row_begin + row / group;
    const std::int64_t head = kv_head * group + row % group;
    const float lse = sum == 0.0f ? -INFINITY : ln_2 * (max + log2f(sum));
    const float lse_t = sum == 0.0f ? -INFINITY : ln_2 * (max * p.problem.lse_temperature_scale + log2f(sum_t));
    if (p.partials.out != nullptr) {
      const std::int64_t state = (q_row * p.problem.num_qo_heads + head) * p.partials.num_splits + split;
      p.partials.lse[state] = lse;
      if (p.partials.lse_t != nullptr) p.partials.lse_t[state] = lse_t;
    } else {
      store_lse(p.problem.lse, q_row, head, lse);
      store_lse(p.problem.lse_t, q_row, head, lse_t);
    }
  }

  /// rows_64: each warp writes its own rows.
  __device__ void finish_rows(WarpState<kDim>& state) const {
    const float v_scale = p.problem.v_scale.get();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + lane / 4 + 8 * i;
      if (row >= num_rows * group) continue;
      const float factor = state.sum[i] == 0.0f ? 0.0f : 1.0f / state.sum[i];
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        write_value(row, d * 8 + lane % 4 * 2, state.o[d][2 * i] * factor, v_scale);
        write_value(row, d * 8 + lane % 4 * 2 + 1, state.o[d][2 * i + 1] * factor, v_scale);
      }
      if (lane % 4 == 0) write_lse(row, state.max[i], state.sum[i], state.sum_t[i]);
    }
  }

  /// rows_16: merges the states of the four warps, in their order.
  __device__ void merge_and_finish(WarpState<kDim>& state) const {
    float* o = reinterpret_cast<float*>(shared + Layout::k);      // [warp][row][D]: as large as k and v together
    float* stats = reinterpret_cast<float*>(shared + Layout::q);  // [max, sum, sum_t][warp][row]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4 + 8 * i;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        float* to = o + (warp * 16 + row) * kDim + d * 8 + lane % 4 * 2;
        to[0] = state.o[d][2 * i];
        to[1] = state.o[d][2 * i + 1];
      }
      if (lane % 4 == 0) {
        stats[warp * 16 + row] = state.max[i];
        stats[64 + warp * 16 + row] = state.sum[i];
        stats[128 + warp * 16 + row] = state.sum_t[i];
      }
    }
    __syncthreads();
    const float v_scale = p.problem.v_scale.get();
    for (int row = 0; row < num_rows * group; ++row) {
      float max = -INFINITY;
      for (int w = 0; w < 4; ++w) max = fmaxf(max, stats[w * 16 + row]);
      const float shift = max == -INFINITY ? 0.0f : max;
      float weight[4];
      float sum = 0.0f;
      float sum_t = 0.0f;
      for (int w = 0; w < 4; ++w) {
        const float distance = stats[w * 16 + row] - shift;
        weight[w] = exp2_approximate(distance);
        sum += weight[w] * stats[64 + w * 16 + row];
        sum_t += exp2_approximate(distance * p.problem.lse_temperature_scale) * stats[128 + w * 16 + row];
      }
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      for (int dim = static_cast<int>(threadIdx.x); dim < kDim; dim += attend_threads) {
        float value = 0.0f;
        for (int w = 0; w < 4; ++w) value += weight[w] * o[(w * 16 + row) * kDim + dim];
        write_value(row, dim, value * factor, v_scale);
      }
      if (threadIdx.x == 0) write_lse(row, max, sum, sum_t);
    }
  }

  __device__ void run() {
    WarpState<kDim> state;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
#pragma unroll
      for (int j = 0; j < 4; ++j) state.o[d][j] = 0.0f;
    }
    for (int i = 0; i < 2; ++i) {
      state.max[i] = -INFINITY;
      state.sum[i] = 0.0f;
      state.sum_t[i] = 0.0f;
    }
    constexpr float log2_e = 1.44269504088896340736f;
    const float scale = p.problem.softmax_scale.get() * p.problem.k_scale.get() * log2_e;

    const std::int64_t num_chunks = ((num_entries << p.block_shift) + chunk_keys - 1) / chunk_keys;
    const std::int64_t begin = num_chunks * split / p.partials.num_splits;
    const std::int64_t end = num_chunks * (split + 1) / p.partials.num_splits;
    load_queries();
    if (begin < end) find_places(begin, 0);
    __syncthreads();
    if (begin < end) load_rows(p.problem.k, 0, Layout::k);
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const int buffer = static_cast<int>(chunk - begin) & 1;
      load_rows(p.problem.v, buffer, Layout::v);
      const bool more = chunk + 1 < end;
      if (more) find_places(chunk + 1, buffer ^ 1);
      copy_async_wait<1>();
      __syncthreads();  // K and the next places are there

      const KeyPlace* place = places(buffer);
      std::uint32_t members = place[lane].members | place[lane + 32].members;
      if (kRowWarps != 4) members = place[warp_key + lane % warp_keys].members;
      const bool active = __any_sync(0xFFFFFFFFu, (members & warp_bits) != 0);
      float s[key_tiles][4];
      if (active) {
        logits(s);
        mask(s, place, scale);
        softmax(s, state);
      }
      __syncthreads();  // K is free
      if (more) {
        load_rows(p.problem.k, buffer ^ 1, Layout::k);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      __syncthreads();  // V is there
      if (active) add_values(s, state);
      __syncthreads();  // V and this chunk's places are free
    }
    reduce_sums(state);
    if constexpr (kRowWarps == 4) {
      finish_rows(state);
    } else {
      merge_and_finish(state);
    }
  }
};

template <class T, int kDim, bool kF8, int kRowWarps>
__global__ void __launch_bounds__(attend_threads) attend_kernel(const __grid_constant__ AttendParameters parameters) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  AttendBlock<T, kDim, kF8, kRowWarps>(parameters, shared_memory).run();
}

template <class T, int kDim, bool kF8, int kRowWarps>
void launch_attend_as(const AttendParameters& parameters, cudaStream_t stream) {
  LaunchShape shape;
  shape.blocks = parameters.routes.num_tiles * parameters.problem.num_kv_heads * parameters.partials.num_splits;
  shape.threads = attend_threads;
  shape.shared_bytes = SharedLayout<kDim, 16 * kRowWarps>::bytes;
  shape.device = parameters.device;
  launch<attend_kernel<T, kDim, kF8, kRowWarps>>("attend_kernel", shape, shape.shared_bytes, stream, parameters);
}

template <class T, int kDim, bool kF8>
void launch_attend_shape(const AttendParameters& parameters, TileShape shape, cudaStream_t stream) {
  if (shape == TileShape::rows_64) {
    launch_attend_as<T, kDim, kF8, 4>(parameters, stream);
  } else {
    launch_attend_as<T, kDim, kF8, 1>(parameters, stream);
  }
}

/// The arithmetic type is that of the output: q's own 16-bit type, or for FP8 q the type asked for, which holds every
/// FP8 number exactly.
template <int kDim>
void launch_attend(const AttendParameters& parameters, TileShape shape, cudaStream_t stream) {
  const bool f8 = parameters.problem.kv_dtype == DType::f8_e4m3;
  if (parameters.problem.out.dtype == DType::bf16) {
    f8 ? launch_attend_shape<__nv_bfloat16, kDim, true>(parameters, shape, stream)
       : launch_attend_shape<__nv_bfloat16, kDim, false>(parameters, shape, stream);
  } else {
    f8 ? launch_attend_shape<__half, kDim, true>(parameters, shape, stream)
       : launch_attend_shape<__half, kDim, false>(parameters, shape, stream);
  }
}

}  // namespace kvsieve::cuda
