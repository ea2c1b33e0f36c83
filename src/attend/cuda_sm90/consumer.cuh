// SPDX-License-Identifier: Apache-2.0
//
// A consumer warpgroup of the Hopper attend kernel: 64 (token, head) rows of the tile, a chunk of keys at a time.
#pragma once

#include <cmath>

#include "attend/cuda_sm90/output.cuh"
#include "attend/cuda_sm90/traits.cuh"
#include "attend/cuda_sm90/work.cuh"
#include "cuda/ptx.cuh"
#include "cuda/wgmma.cuh"

namespace kvsieve::cuda::sm90 {

/// A consumer warpgroup.
template <class Traits>
struct Consumer {
  using T = typename Traits::T;
  static constexpr int key_tiles = Traits::chunk / 8;
  static constexpr int dim_tiles = Traits::dim / 8;
  /// How far, in powers of two, a logit may lie above its row's reference: probabilities are up to 2^8 then, and o is
  /// rescaled a few times a tile rather than for every new maximum.
  static constexpr float most_above = 8.0f;

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
  float max[2];  ///< the rows' references: no logit is more than 2^most_above above them
  float sum[2];

  __device__ Consumer(const Parameters& all, unsigned char* shared_memory, Barriers<Traits> all_barriers, int index)
      : p(all.attend), parameters(all), shared(shared_memory), barriers(all_barriers), warpgroup(index) {}

  /// Waits until no other warpgroup issues products, and keeps the others waiting until pass_turn(). Who holds the turn
  /// waits for nothing.
  __device__ void take_turn() const {
    if constexpr (Traits::takes_turns) {
      if (threadIdx.x % 128 == 0) {
        auto* const turn = reinterpret_cast<std::uint32_t*>(shared + Traits::turn_at);
        while (atomicCAS(turn, 0u, 1u) != 0u) {
        }
      }
      __syncwarp();
      sync_named(3 + warpgroup, 128);
    }
  }
  __device__ void pass_turn() const {
    if constexpr (Traits::takes_turns) {
      if (threadIdx.x % 128 == 0) atomicExch(reinterpret_cast<std::uint32_t*>(shared + Traits::turn_at), 0u);
    }
  }

  /// A chunk that some row of the warpgroup attends to; its K tile is there.
  struct Chunk {
    RingPosition<Traits::slots> k, v;
    std::uint32_t buffer;     ///< of its members
    std::uint32_t some, all;  ///< rows of the tile that attend to some, to all of its keys
  };

  __device__ void begin_tile(const Work& work) {
    const int tokens = parameters.schedule.warpgroup_tokens;
    const int first = warpgroup * tokens;
    const int last = first + tokens < work.num_rows ? first + tokens : work.num_rows;
    warpgroup_bits = 0;
    for (int token = first; token < last; ++token) warpgroup_bits |= 1u << token;
    for (int i = 0; i < 2; ++i) {
      const int token = TokenHead(parameters.schedule.group, warp * 16 + lane / 4 + 8 * i).token;
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
  /// The tile's last logits are made.
  __device__ bool release_queries() const {
    if (lane == 0) barriers.queries_empty().arrive();
    return true;
  }

  __device__ void place(Chunk& chunk) const {
    chunk.k = position;
    chunk.v = position.next();
    chunk.buffer = chunks % Traits::member_buffers;
  }
  __device__ void read_summary(Chunk& chunk) const {
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
  }

  /// Looks at the next chunk if its K tile is already there.
  __device__ bool peek(Chunk& chunk) const {
    place(chunk);
    if (!barriers.full(chunk.k.slot).test(chunk.k.phase)) return false;
    read_summary(chunk);
    return true;
  }
  /// Waits for the K tile of the next chunk, unless peek() has seen it; true when the warpgroup needs the chunk.
  __device__ bool look(Chunk& chunk, bool seen) const {
    if (!seen) {
      place(chunk);
      barriers.full(chunk.k.slot).wait(chunk.k.phase);
      read_summary(chunk);
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
      const bool needed = look(chunk, false);
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
      __syncwarp();  // all lanes have seen this phase: the next one may follow the arrival
      release(chunk.v.slot);
    }
    return false;
  }

  /// Starts s = q k^T of the warpgroup's rows and the chunk's keys, unscaled.
  __device__ void start_logits(float (&s)[key_tiles * 4], const Chunk& chunk) const {
    const auto a =
        wgmma::Descriptor(shared_address(shared) + Traits::queries_at + warpgroup * Traits::queries).uniform();
    const auto b = wgmma::Descriptor(shared_address(shared) + Traits::slots_at + chunk.k.slot * Traits::slot).uniform();
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
    const auto b =
        wgmma::Descriptor(shared_address(shared) + Traits::slots_at + chunk.v.slot * Traits::slot, Traits::slot_panel)
            .uniform();
    wgmma::fence();
#pragma unroll
    for (int step = 0; step < key_tiles / 2; ++step) {
      wgmma::multiply_registers<T>(o, probabilities[step], b.plus(step * 16 * 128));
    }
    wgmma::commit();
  }

  /// Sets the logits of keys that a row does not attend to to -infinity.
  __device__ void mask(float (&s)[key_tiles * 4], const Chunk& chunk) const {
    if (chunk.some == chunk.all) {  // the same rows for all keys; the producer may not have written them out by key
      const bool attends[2] = {(chunk.all & row_bit[0]) != 0, (chunk.all & row_bit[1]) != 0};
#pragma unroll
      for (int i = 0; i < key_tiles * 4; ++i) s[i] = attends[i / 2 % 2] ? s[i] : -INFINITY;
      return;
    }
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

  /// First half of a step of the online softmax: masks the logits, and moves a row's reference to their maximum where
  /// that lies far above it. True when some row of the warp moved; o and the sums then have to be multiplied by alpha.
  __device__ bool move_references(float (&s)[key_tiles * 4], const Chunk& chunk, float (&alpha)[2]) {
    if (pre_scale != 1.0f) {
#pragma unroll
      for (int i = 0; i < key_tiles * 4; ++i) s[i] *= pre_scale;
    }
    if ((chunk.all & warp_bits) != warp_bits) mask(s, chunk);
    bool moved = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      constexpr int chains = key_tiles >= 16 ? 4 : 1;  // one of 32 would wait for itself, four of 4 only cost registers
      float parts[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < key_tiles; ++n) {
        parts[n % chains] = fmaxf(parts[n % chains], fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]));
      }
      float most = fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
      // Also from -infinity; not from -infinity to itself, whose difference is NaN.
      const bool moves = (most - max[i]) * scale > most_above;
      alpha[i] = moves ? exp2_approximate((max[i] - most) * scale) : 1.0f;
      max[i] = moves ? most : max[i];
      moved = moved || moves;
    }
    return __any_sync(0xFFFFFFFFu, moved);
  }

  /// Second half: probabilities, rounded for the product with V, and their sums. Not before the product that reads the
  /// old probabilities is done.
  __device__ void exponentials(const float (&s)[key_tiles * 4], std::uint32_t (&probabilities)[key_tiles / 2][4]) {
    // A row that has seen no key keeps -infinity; 0 in its place keeps -infinity - -infinity out of the exponent.
    const float shift[2] = {max[0] == -INFINITY ? 0.0f : max[0] * scale, max[1] == -INFINITY ? 0.0f : max[1] * scale};
#pragma unroll
    for (int i = 0; i < key_tiles * 2; ++i) {
      const float p0 = exp2_approximate(fmaf(s[2 * i], scale, -shift[i % 2]));
      const float p1 = exp2_approximate(fmaf(s[2 * i + 1], scale, -shift[i % 2]));
      sum[i % 2] += p0;  // of this lane's keys; the lanes of a row are added up at the end
      sum[i % 2] += p1;
      probabilities[i / 4][i % 4] = pack2<T>(p0, p1);
    }
  }

  /// The probabilities of a warp; zeros when it attends to no key of the chunk.
  __device__ void set_probabilities(bool attends, const float (&s)[key_tiles * 4],
                                    std::uint32_t (&probabilities)[key_tiles / 2][4]) {
    if (attends) {
      exponentials(s, probabilities);
    } else {
#pragma unroll
      for (int i = 0; i < key_tiles * 2; ++i) probabilities[i / 4][i % 4] = 0;
    }
  }

  __device__ void rescale(const float (&alpha)[2]) {
    sum[0] *= alpha[0];
    sum[1] *= alpha[1];
#pragma unroll
    for (int i = 0; i < dim_tiles; ++i) {
      o[4 * i] *= alpha[0];
      o[4 * i + 1] *= alpha[0];
      o[4 * i + 2] *= alpha[1];
      o[4 * i + 3] *= alpha[1];
    }
  }

  /// All chunks of the tile. While the tensor cores multiply the values of a chunk, the logits of the next one, which
  /// they made before, go through the first half of their softmax; if the warpgroup needs both and none between.
  __device__ void attend(std::int32_t left) {
    float s[key_tiles * 4];
    float alpha[2];
    std::uint32_t probabilities[key_tiles / 2][4];
    Chunk chunk;
    bool queries_read = false;
    while (find(left, chunk)) {
      fence_async_proxy();  // K, V and the queries were copied by ordinary writes
      start_logits(s, chunk);
      wgmma::wait<0>();
      wgmma::pin(s);
      release(chunk.k.slot);
      if (left == 0) queries_read = release_queries();
      const bool first_attends = (chunk.some & warp_bits) != 0;
      if (first_attends && move_references(s, chunk, alpha)) rescale(alpha);
      Chunk next;
      // Asked before the exponentials, answered by their end.
      bool seen = left > 0 && peek(next);
      bool values_there = barriers.full(chunk.v.slot).test(chunk.v.phase);
      set_probabilities(first_attends, s, probabilities);
      while (left > 0 && look(next, seen)) {
        advance(next);
        --left;
        if (!values_there) barriers.full(chunk.v.slot).wait(chunk.v.phase);
        fence_async_proxy();
        take_turn();
        start_logits(s, next);
        wgmma::pin(o);
        start_values(probabilities, chunk);
        pass_turn();
        wgmma::wait<1>();
        wgmma::pin(s);
        release(next.k.slot);
        if (left == 0) queries_read = release_queries();
        // A wait in each branch of a condition that needs the maxima: else the assembler puts the wait before them, and
        // nothing is left to hide the product.
        const bool attends = (next.some & warp_bits) != 0;
        if (attends && move_references(s, next, alpha)) {
          wgmma::wait<0>();
          wgmma::pin(o);
          rescale(alpha);
        } else {
          wgmma::wait_again<0>();
          wgmma::pin(o);
        }
        release(chunk.v.slot);
        chunk = next;
        seen = left > 0 && peek(next);
        values_there = barriers.full(chunk.v.slot).test(chunk.v.phase);
        set_probabilities(attends, s, probabilities);
      }
      if (!values_there) barriers.full(chunk.v.slot).wait(chunk.v.phase);
      fence_async_proxy();
      wgmma::pin(o);
      start_values(probabilities, chunk);
      wgmma::wait<0>();
      wgmma::pin(o);
      release(chunk.v.slot);
    }
    if (!queries_read) release_queries();
  }

  __device__ void run() {
    constexpr float log2_e = 1.44269504088896340736f;
    const float call_scale = p.problem.softmax_scale.get() * p.problem.k_scale.get() * log2_e;
    // The maximum is that of the scaled logits, so a scale that is not positive is applied to them first.
    scale = call_scale > 0.0f ? call_scale : 1.0f;
    pre_scale = call_scale > 0.0f ? 1.0f : call_scale;
    std::uint32_t works = 0;
    for_each_work<Traits>(parameters, shared, [&](const Work& work) {
      begin_tile(work);
      barriers.queries_full().wait(works & 1);
      __syncwarp();
      attend(work.end - work.begin);
      ++works;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 2);
      }
      if (work.state == no_state) {
        finish(work);
      } else {
        write_state(work);
      }
    });
  }

  /// Leaves the state of a work that other thread blocks have chunks of too, for combine_shares().
  __device__ void write_state(const Work& work) const {
    const SharedStates& states = parameters.states;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row_bit[i] == 0) continue;
      const std::int64_t row =
          work.state * std::int64_t{tile_rows} + warpgroup * warpgroup_rows + warp * 16 + lane / 4 + 8 * i;
      float* const to = states.out + row * Traits::dim + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < dim_tiles; ++d) {
        *reinterpret_cast<float2*>(to + d * 8) = {o[4 * d + 2 * i], o[4 * d + 2 * i + 1]};
      }
      if (lane % 4 == 0) states.stats[row] = {max[i] * scale, sum[i]};
    }
  }

  /// Writes the tile's rows.
  __device__ void finish(const Work& work) {
    constexpr float ln_2 = 0.693147180559945309f;
    const RowHeads& out = p.problem.out;
    const float v_scale = p.problem.v_scale.get();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row_bit[i] == 0) continue;
      const TokenHead row(parameters.schedule.group, warp * 16 + lane / 4 + 8 * i);
      const std::int64_t q_row = work.row_begin + warpgroup * parameters.schedule.warpgroup_tokens + row.token;
      const std::int64_t head = work.kv_head * parameters.schedule.group.size + row.head;
      const float factor = sum[i] == 0.0f ? 0.0f : v_scale / sum[i];
      auto* const to = static_cast<T*>(out.data) + q_row * out.stride_row + head * out.stride_head + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < dim_tiles; ++d) {
        store_pair(to + d * 8, o[4 * d + 2 * i] * factor, o[4 * d + 2 * i + 1] * factor);
      }
      if (p.problem.gate.defined()) {
#pragma unroll 1
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
