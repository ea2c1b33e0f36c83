// SPDX-License-Identifier: Apache-2.0
//
// A consumer warpgroup of the Hopper attend kernel: 64 (token, head) rows of the tile, a chunk of keys at a time.
#pragma once

#include <cmath>

#include "attend/cuda_sm90/output.cuh"
#include "attend/cuda_sm90/split_states.cuh"
#include "attend/cuda_sm90/traits.cuh"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

namespace kvsieve::cuda::sm90 {

/// A consumer warpgroup.
template <class Traits>
struct Consumer {
  using T = typename Traits::T;
  static constexpr int key_tiles = Traits::chunk / 8;
  static constexpr int dim_tiles = Traits::dim / 8;

  const AttendParameters& p;
  const Parameters& parameters;
  unsigned char* shared;
  Barriers<Traits> barriers;
  int warpgroup;
  int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::slots> position;  ///< of the K tile of the chunk to look at next
  std::uint32_t chunks = 0;              ///< looked at so far
  float scale;                           ///< > 0: takes logits to base 2
  float pre_scale;                       ///< of the logits themselves where the call's scale is not positive, else 1

  // Of the current tile.
  std::uint32_t row_bit[2];  ///< membership bits of this lane's two rows; 0 for padding
  std::uint32_t warp_bits, warpgroup_bits;

  // Attention state of this lane's rows.
  float o[dim_tiles * 4];
  float max[2];
  float sum[2];

  __device__ Consumer(const Parameters& all, unsigned char* shared_memory, Barriers<Traits> all_barriers, int index)
      : p(all.attend), parameters(all), shared(shared_memory), barriers(all_barriers), warpgroup(index) {}

  /// A chunk that some row of the warpgroup attends to; its K tile is there.
  struct Chunk {
    RingPosition<Traits::slots> k, v;
    std::uint32_t buffer;     ///< of its members
    std::uint32_t some, all;  ///< rows of the tile that attend to some, to all of its keys
  };

  __device__ void begin_tile(const Work& work) {
    const int group = static_cast<int>(p.problem.group());
    const int tokens = parameters.schedule.warpgroup_tokens;
    const int first = warpgroup * tokens;
    const int last = first + tokens < work.num_rows ? first + tokens : work.num_rows;
    warpgroup_bits = 0;
    for (int token = first; token < last; ++token) warpgroup_bits |= 1u << token;
    for (int i = 0; i < 2; ++i) {
      const int token = (warp * 16 + lane / 4 + 8 * i) / group;
      row_bit[i] = token < tokens ? (1u << (first + token)) & warpgroup_bits : 0;
      max[i] = -INFINITY;
      sum[i] = 0.0f;
    }
    warp_bits = __reduce_or_sync(0xFFFFFFFFu, row_bit[0] | row_bit[1]);
#pragma unroll
    for (int i = 0; i < dim_tiles * 4; ++i) o[i] = 0.0f;
  }

  __device__ void release(std::uint32_t slot) const {
    if (lane == 0) barriers.empty(slot).arrive();
  }

  /// Waits for the K tile of the next chunk; true when the warpgroup needs the chunk.
  __device__ bool look(Chunk& chunk) const {
    chunk.k = position;
    chunk.v = position.next();
    chunk.buffer = chunks % Traits::member_buffers;
    barriers.full(chunk.k.slot).wait(chunk.k.phase);
    const auto* const summary =
        reinterpret_cast<const uint4*>(shared + Traits::summaries_at) + chunk.buffer * (Traits::chunk / 64);
    chunk.some = 0;
    chunk.all = 0xFFFFFFFFu;
#pragma unroll
    for (int i = 0; i < Traits::chunk / 64; ++i) {
      const uint4 part = summary[i];
      chunk.some |= part.x | part.z;
      chunk.all &= part.y & part.w;
    }
    return (chunk.some & warpgroup_bits) != 0;
  }

  __device__ void advance(const Chunk& chunk) {
    position = chunk.v.next();
    ++chunks;
  }

  /// Takes the next of the `left` chunks that the warpgroup needs, skipping the others. The warpgroup holds no slot
  /// then: a held one would stop the producer before it is through with a long run of chunks to skip.
  __device__ bool find(std::int32_t& left, Chunk& chunk) {
    for (; left > 0; --left) {
      const bool needed = look(chunk);
      advance(chunk);
      if (needed) {
        --left;
        return true;
      }
      __syncwarp();
      release(chunk.k.slot);
      // Not before it is full: the arrival might count for the slot's previous tile, which another warpgroup still
      // reads.
      barriers.full(chunk.v.slot).wait(chunk.v.phase);
      release(chunk.v.slot);
    }
    return false;
  }

  /// Starts s = q k^T of the warpgroup's rows and the chunk's keys, unscaled.
  __device__ void start_logits(float (&s)[key_tiles * 4], const Chunk& chunk) const {
    // The same for all lanes, and known to be so: descriptors live in uniform registers.
    const int uniform_warpgroup = __shfl_sync(0xFFFFFFFFu, warpgroup, 0);
    const std::uint32_t uniform_slot = __shfl_sync(0xFFFFFFFFu, chunk.k.slot, 0);
    const wgmma::Descriptor a(shared_address(shared) + Traits::queries_at + uniform_warpgroup * Traits::queries);
    const wgmma::Descriptor b(shared_address(shared) + Traits::slots_at + uniform_slot * Traits::slot);
    wgmma::fence();
#pragma unroll
    for (int step = 0; step < Traits::dim / 16; ++step) {
      wgmma::multiply<T>(s, a.plus(step / 4 * Traits::query_panel + step % 4 * 32),
                         b.plus(step / 4 * Traits::slot_panel + step % 4 * 32), step != 0);
    }
    wgmma::commit();
  }

  /// Starts o += p v.
  __device__ void start_values(const std::uint32_t (&probabilities)[key_tiles / 2][4], const Chunk& chunk) {
    const std::uint32_t uniform_slot = __shfl_sync(0xFFFFFFFFu, chunk.v.slot, 0);
    const wgmma::Descriptor b(shared_address(shared) + Traits::slots_at + uniform_slot * Traits::slot,
                              Traits::slot_panel);
    wgmma::fence();
#pragma unroll
    for (int step = 0; step < key_tiles / 2; ++step) {
      wgmma::multiply_registers<T>(o, probabilities[step], b.plus(step * 16 * 128));
    }
    wgmma::commit();
  }

  /// Sets the logits of keys that a row does not attend to to -infinity.
  __device__ void mask(float (&s)[key_tiles * 4], const Chunk& chunk) const {
    const std::uint32_t* const members =
        reinterpret_cast<const std::uint32_t*>(shared + Traits::members_at) + chunk.buffer * Traits::chunk;
#pragma unroll
    for (int n = 0; n < key_tiles; ++n) {
      const uint2 key = *reinterpret_cast<const uint2*>(members + n * 8 + lane % 4 * 2);
      s[4 * n] = (key.x & row_bit[0]) != 0 ? s[4 * n] : -INFINITY;
      s[4 * n + 1] = (key.y & row_bit[0]) != 0 ? s[4 * n + 1] : -INFINITY;
      s[4 * n + 2] = (key.x & row_bit[1]) != 0 ? s[4 * n + 2] : -INFINITY;
      s[4 * n + 3] = (key.y & row_bit[1]) != 0 ? s[4 * n + 3] : -INFINITY;
    }
  }

  /// One step of the online softmax: logits to probabilities, and the factors that o has to be multiplied by. True when
  /// one is not 1.
  __device__ bool softmax(float (&s)[key_tiles * 4], const Chunk& chunk, float (&alpha)[2]) {
    // A warp without a row that attends is masked too: leaving early would split the warpgroup between its products.
    if (pre_scale != 1.0f) {
#pragma unroll
      for (int i = 0; i < key_tiles * 4; ++i) s[i] *= pre_scale;
    }
    if ((chunk.all & warp_bits) != warp_bits) mask(s, chunk);
    float shift[2];
    bool moved = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float parts[4] = {max[i], -INFINITY, -INFINITY, -INFINITY};  // four chains: one would wait for itself
#pragma unroll
      for (int n = 0; n < key_tiles; ++n) {
        parts[n % 4] = fmaxf(parts[n % 4], fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]));
      }
      float most = fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
      // A row that has seen no key keeps -infinity; 0 in its place keeps -infinity - -infinity out of the exponent.
      shift[i] = most == -INFINITY ? 0.0f : most * scale;
      alpha[i] = exp2_approximate(fmaf(max[i], scale, -shift[i]));
      moved = moved || most != max[i];
      max[i] = most;
      sum[i] *= alpha[i];
    }
#pragma unroll
    for (int j = 0; j < key_tiles * 4; ++j) {
      s[j] = exp2_approximate(fmaf(s[j], scale, -shift[j / 2 % 2]));
      sum[j / 2 % 2] += s[j];  // of this lane's keys; the lanes of a row are added up at the end
    }
    return __any_sync(0xFFFFFFFFu, moved || !(sum[0] + sum[1] >= 0.0f));  // a NaN may as well rescale
  }

  /// Rounds probabilities for the product with V. Not before the product that reads the old ones is done.
  __device__ static void round(const float (&s)[key_tiles * 4], std::uint32_t (&probabilities)[key_tiles / 2][4]) {
#pragma unroll
    for (int i = 0; i < key_tiles * 2; ++i) probabilities[i / 4][i % 4] = pack2<T>(s[2 * i], s[2 * i + 1]);
  }

  __device__ void rescale(const float (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < dim_tiles; ++i) {
      o[4 * i] *= alpha[0];
      o[4 * i + 1] *= alpha[0];
      o[4 * i + 2] *= alpha[1];
      o[4 * i + 3] *= alpha[1];
    }
  }

  /// All chunks of the tile. The softmax of a chunk runs while the tensor cores multiply the values of the one before,
  /// if the warpgroup needs both and none between.
  __device__ void attend(std::int32_t left) {
    float s[key_tiles * 4];
    float alpha[2];
    std::uint32_t probabilities[key_tiles / 2][4];
    Chunk chunk;
    while (find(left, chunk)) {
      fence_async_proxy();  // K, V and the queries were copied by ordinary writes
      start_logits(s, chunk);
      wgmma::wait<0>();
      wgmma::pin(s);
      release(chunk.k.slot);
      softmax(s, chunk, alpha);
      round(s, probabilities);
      rescale(alpha);
      Chunk next;
      while (left > 0 && look(next)) {
        advance(next);
        --left;
        barriers.full(chunk.v.slot).wait(chunk.v.phase);
        fence_async_proxy();
        start_logits(s, next);
        wgmma::pin(o);
        start_values(probabilities, chunk);
        wgmma::wait<1>();
        wgmma::pin(s);
        release(next.k.slot);
        const bool moved = softmax(s, next, alpha);
        // A wait in each branch of a condition that needs the sums: else the assembler puts the wait before the
        // exponentials, whose time the product is to fill.
        if (moved) {
          wgmma::wait<0>();
          wgmma::pin(o);
          rescale(alpha);
        } else {
          wgmma::wait_again<0>();
          wgmma::pin(o);
        }
        release(chunk.v.slot);
        round(s, probabilities);
        chunk = next;
      }
      barriers.full(chunk.v.slot).wait(chunk.v.phase);
      fence_async_proxy();
      wgmma::pin(o);
      start_values(probabilities, chunk);
      wgmma::wait<0>();
      wgmma::pin(o);
      release(chunk.v.slot);
    }
  }

  __device__ void run() {
    constexpr float log2_e = 1.44269504088896340736f;
    const float call_scale = p.problem.softmax_scale.get() * p.problem.k_scale.get() * log2_e;
    // The maximum is that of the scaled logits, so a scale that is not positive is applied to them first.
    scale = call_scale > 0.0f ? call_scale : 1.0f;
    pre_scale = call_scale > 0.0f ? 1.0f : call_scale;
    std::uint32_t works = 0;
    for (std::uint32_t index = first_work(parameters); index < num_works(parameters);
         index += work_stride(parameters)) {
      const Work work(parameters, index, parameters.schedule.in_block_route ? shared : nullptr, Traits());
      begin_tile(work);
      barriers.queries_full().wait(works & 1);
      attend(work.end - work.begin);
      if (lane == 0) barriers.queries_empty().arrive();
      ++works;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 2);
      }
      if (parameters.schedule.splits == 1) {
        finish(work);
      } else {
        SplitStates<Traits>(parameters, shared).combine(*this, work);
      }
    }
  }

  /// Writes the tile's rows.
  __device__ void finish(const Work& work) {
    constexpr float ln_2 = 0.693147180559945309f;
    const int group = static_cast<int>(p.problem.group());
    const float v_scale = p.problem.v_scale.get();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row_bit[i] == 0) continue;
      const int row = warp * 16 + lane / 4 + 8 * i;
      const std::int64_t q_row = work.row_begin + warpgroup * parameters.schedule.warpgroup_tokens + row / group;
      const std::int64_t head = work.kv_head * group + row % group;
      const float factor = sum[i] == 0.0f ? 0.0f : v_scale / sum[i];
#pragma unroll
      for (int d = 0; d < dim_tiles; ++d) {
        store_pair<T>(p.problem.out, q_row, head, d * 8 + lane % 4 * 2, o[4 * d + 2 * i] * factor,
                      o[4 * d + 2 * i + 1] * factor);
      }
      if (p.problem.gate.defined()) {
        for (int d = 0; d < dim_tiles * 2; ++d) {
          gate_element(p.problem, q_row, head, d / 2 * 8 + lane % 4 * 2 + d % 2);
        }
      }
      if (lane % 4 == 0) {
        store_lse(p.problem.lse, q_row, head, sum[i] == 0.0f ? -INFINITY : ln_2 * (max[i] * scale + log2f(sum[i])));
      }
    }
  }
};

}  // namespace kvsieve::cuda::sm90
