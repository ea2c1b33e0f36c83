// SPDX-License-Identifier: Apache-2.0
//
// The producer warpgroup of the Hopper attend kernel: finds the keys of each chunk and brings their rows of K and V
// into the ring of slots, 16 bytes at a time.
#pragma once

#include "attend/cuda_sm90/traits.cuh"
#include "attend/cuda_sm90/work.cuh"
#include "cuda/convert.cuh"
#include "cuda/ptx.cuh"

namespace kvsieve::cuda::sm90 {

/// What the keys that no row attends to are copied from: a row of zeros.
__device__ const uint4 zero_row[512 / 16] = {};

template <class Traits>
struct Producer {
  static constexpr int unit_elements = Traits::f8 ? 16 : 8;  ///< of 16 bytes in global memory
  static constexpr int units = Traits::dim / unit_elements;
  static constexpr int rows_per_pass = 128 / units;
  static constexpr int passes = Traits::chunk / rows_per_pass;

  const AttendParameters& p;
  const Parameters& parameters;
  unsigned char* shared;
  Barriers<Traits> barriers;
  int thread = static_cast<int>(threadIdx.x) % 128;
  int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::slots> position;  ///< of the next K or V tile
  std::uint32_t chunks = 0;              ///< found so far
  std::uint32_t tables = 0;              ///< chunks so far whose keys were found one by one
  std::uint32_t works = 0;               ///< done so far
  DeviceRouteEntry next_entry;           ///< of this thread's key in the next chunk
  const DeviceRouteEntry* entries;       ///< of the work's route
  const char* k_head;                    ///< K and V of the KV head
  const char* v_head;

  __device__ Producer(const Parameters& all, unsigned char* shared_memory, Barriers<Traits> all_barriers)
      : p(all.attend), parameters(all), shared(shared_memory), barriers(all_barriers) {}

  /// Addresses of the keys' rows in K, or in V; a row of zeros where no row attends to the key.
  __device__ const char** sources(std::uint32_t table, bool values) const {
    return reinterpret_cast<const char**>(shared + Traits::sources_at) +
           (table % 2 * 2 + (values ? 1 : 0)) * Traits::chunk;
  }
  __device__ std::uint32_t* members(std::uint32_t chunk) const {
    return reinterpret_cast<std::uint32_t*>(shared + Traits::members_at) +
           chunk % Traits::member_buffers * Traits::chunk;
  }
  __device__ KeysSummary* summaries(std::uint32_t chunk) const {
    return reinterpret_cast<KeysSummary*>(shared + Traits::summaries_at) +
           chunk % Traits::member_buffers * (Traits::chunk / 32);
  }

  /// The slot of the next tile, when it is free.
  __device__ std::uint32_t acquire() const {
    barriers.empty(position.slot).wait(position.phase ^ 1);
    return position.slot;
  }

  /// Starts copying the queries of the tile. Padding rows keep what is there: no row looks at another one's logits.
  __device__ void load_queries(const Work& work) {
    barriers.queries_empty().wait((works + 1) & 1);
    constexpr int query_units = Traits::dim / 8;
    const int group = parameters.schedule.group.size;
    const int tokens = parameters.schedule.warpgroup_tokens;
    const RowHeads& q = p.problem.q;
#pragma unroll 1
    for (int i = thread; i < work.num_rows * group * query_units; i += 128) {
      const auto [token, head] = TokenHead(parameters.schedule.group, i / query_units);
      const int unit = i % query_units;
      const int warpgroup = token >= tokens ? 1 : 0;
      const int row = (token - warpgroup * tokens) * group + head;
      const std::int64_t element =
          (work.row_begin + token) * q.stride_row + (work.kv_head * group + head) * q.stride_head + unit * 8;
      const int to = Traits::queries_at + warpgroup * Traits::queries + unit / 8 * Traits::query_panel + row * 128 +
                     ((unit ^ row) & 7) * 16;
      if (q.dtype != DType::f8_e4m3) {
        copy_async_16(shared_address(shared + to), static_cast<const typename Traits::T*>(q.data) + element, true);
      } else {
        *reinterpret_cast<uint4*>(shared + to) =
            widen(*reinterpret_cast<const uint2*>(static_cast<const unsigned char*>(q.data) + element));
      }
    }
    if (q.dtype != DType::f8_e4m3) {
      barriers.queries_full().arrive_after_copies();
    } else {
      barriers.queries_full().arrive();
    }
  }

  __device__ static uint4 widen(uint2 bits) {
    using T = typename Traits::T;
    return {widen_f8x2<T>(bits.x & 0xFFFF), widen_f8x2<T>(bits.x >> 16), widen_f8x2<T>(bits.y & 0xFFFF),
            widen_f8x2<T>(bits.y >> 16)};
  }

  /// Loads the entry of this thread's key in a chunk, well before find_chunk() needs it. Threads past the chunk take
  /// its first keys again.
  __device__ void fetch_entry(const Work& work, std::int32_t chunk) {
    const std::int32_t index = (chunk * Traits::chunk + thread % Traits::chunk) >> p.block_shift;
    next_entry = {-1, 0, 0, 0};
    if (index < work.num_entries) next_entry = entries[index];
  }

  /// Where the rows of a chunk are: one after the other from this thread's first in K and V, or, when these are null,
  /// in a table of addresses.
  struct ChunkRows {
    const char* k;
    const char* v;
    std::uint32_t table;
  };

  static constexpr std::int64_t element_size = Traits::f8 ? 1 : 2;
  __device__ const KvCache& cache(bool values) const { return values ? p.problem.v : p.problem.k; }

  __device__ const char* row_of_token(bool values, const DeviceRouteEntry& entry, std::int32_t offset) const {
    const std::int64_t element =
        entry.page * cache(values).stride_page + std::int64_t{entry.slot + offset} * cache(values).stride_token;
    return (values ? v_head : k_head) + element * element_size;
  }

  /// Finds the rows of a chunk and which rows of the tile attend to each.
  __device__ ChunkRows find_chunk(const Work& work, std::int32_t chunk, std::uint32_t buffer, std::int32_t lane_limit,
                                  std::int32_t min_limit) {
    const DeviceRouteEntry entry = next_entry;
    fetch_entry(work, chunk + 1);
    const auto offset = static_cast<std::int32_t>(chunk * Traits::chunk & (p.problem.block_size - 1));
    const auto last = static_cast<std::int32_t>(entry.block * p.problem.block_size + offset + Traits::chunk - 1);
    if ((1 << p.block_shift) >= Traits::chunk && last <= min_limit && entry.members != 0) {
      // Part of one block, all of which whoever chose it attends to: for every thread the same entry.
      if (thread == 0) {
#pragma unroll
        for (int i = 0; i < Traits::chunk / 32; ++i) summaries(buffer)[i] = {entry.members, entry.members};
      }
      const std::int32_t row = offset + thread / units;
      const std::int32_t byte = thread % units * 16;
      return {row_of_token(false, entry, row) + byte, row_of_token(true, entry, row) + byte, 0};
    }
    find_keys(work, entry, chunk, buffer, lane_limit, min_limit);
    return {nullptr, nullptr, tables++};
  }

  /// Finds the keys of a chunk: a thread finds a key's row in K and V, or, when there are two threads a key, in one of
  /// them.
  __device__ void find_keys(const Work& work, DeviceRouteEntry entry, std::int32_t chunk, std::uint32_t buffer,
                            std::int32_t lane_limit, std::int32_t min_limit) {
    const int in_chunk = thread % Traits::chunk;
    const bool upper = thread >= Traits::chunk;
    const std::int32_t key = chunk * Traits::chunk + in_chunk;
    const auto offset = static_cast<std::int32_t>(key & (p.problem.block_size - 1));
    const auto position = static_cast<std::int32_t>(entry.block * p.problem.block_size + offset);
    // Keys past a row's limit do not count for it; what no row attends to is never read, it may be anything.
    if (__any_sync(0xFFFFFFFFu, position > min_limit)) {
      for (int row = 0; row < work.num_rows; ++row) {
        if (position > __shfl_sync(0xFFFFFFFFu, lane_limit, row)) entry.members &= ~(1u << row);
      }
    }
    const auto place = [&](bool values) {
      const auto* const zeros = reinterpret_cast<const char*>(zero_row);
      sources(tables, values)[in_chunk] = entry.members != 0 ? row_of_token(values, entry, offset) : zeros;
    };
    place(upper);
    if constexpr (Traits::chunk == 128) place(true);
    if (!upper) {
      members(buffer)[in_chunk] = entry.members;
      const std::uint32_t some = __reduce_or_sync(0xFFFFFFFFu, entry.members);
      const std::uint32_t all = __reduce_and_sync(0xFFFFFFFFu, entry.members);
      if (lane == 0) summaries(buffer)[in_chunk / 32] = {some, all};
    }
    sync_named(1, 128);
  }

  /// Calls one(row, address) for this thread's 16 bytes of kRows rows of K or V, every rows_per_pass-th from `first`;
  /// the row does not count the thread's own. Addresses in a table are read four at a time, before the first is used,
  /// which hides that they come out of shared memory.
  template <int kRows, class One>
  __device__ void for_rows(const ChunkRows& rows, bool values, int first, const One& one) const {
    if (rows.k != nullptr) {
      const std::int64_t stride = cache(values).stride_token * element_size;
      const char* from = (values ? rows.v : rows.k) + first * stride;
#pragma unroll
      for (int i = 0; i < kRows; ++i, from += rows_per_pass * stride) one(i * rows_per_pass, from);
    } else {
      const char* const* const source = sources(rows.table, values) + thread / units + first;
      const int byte = thread % units * 16;
      constexpr int together = std::min(kRows, 4);
#pragma unroll
      for (int i = 0; i < kRows; i += together) {
        const char* from[together];
#pragma unroll
        for (int j = 0; j < together; ++j) from[j] = source[(i + j) * rows_per_pass] + byte;
#pragma unroll
        for (int j = 0; j < together; ++j) one((i + j) * rows_per_pass, from[j]);
      }
    }
  }

  /// The copies of this thread into a slot are under way: it fills up when they have landed. One thread vouches for the
  /// chunk's members, written before.
  __device__ void hand_over(std::uint32_t slot) {
    if constexpr (Traits::f8) {
      barriers.full(slot).arrive();
    } else {
      barriers.full(slot).arrive_after_copies();
    }
    if (thread == 0) barriers.full(slot).arrive();
    position = position.next();
  }

  /// Starts the copies of a chunk's rows of K or V into the next slot.
  __device__ void copy_rows(const ChunkRows& rows, bool values) {
    const std::uint32_t slot = acquire();
    const int unit = thread % units;
    const int first = thread / units;
    const std::uint32_t to =
        shared_address(shared) + Traits::slots_at + slot * Traits::slot + unit / 8 * Traits::slot_panel + first * 128;
    for_rows<passes>(rows, values, 0, [&](int row, const char* from) {
      // (unit ^ (row + first)) & 7: what is added has no bits of `first`.
      copy_async_16(to + row * 128 + ((unit ^ first ^ row) & 7) * 16, from, true);
    });
    hand_over(slot);
  }

  /// The first K tile does not wait for the queries' place: it comes while the consumers end the tile before.
  __device__ void produce(const Work& work, std::int32_t limit, std::int32_t min_limit) {
    for (std::int32_t chunk = work.begin; chunk < work.end; ++chunk) {
      const ChunkRows rows = find_chunk(work, chunk, chunks++, limit, min_limit);
      copy_rows(rows, false);
      if (chunk == work.begin) load_queries(work);
      copy_rows(rows, true);
    }
  }

  /// This thread's 16 bytes of a pass in a stage.
  __device__ unsigned char* staged(int stage, int pass) const {
    return shared + Traits::stages_at + stage * Traits::stage + (pass * 128 + thread) * 16;
  }

  /// FP8: widens this thread's part of a stage into a slot.
  __device__ void widen_stage(int stage, std::uint32_t slot) const {
    const int unit = thread % units;
    const int panel = unit / 4;
    unsigned char* const to = shared + Traits::slots_at + slot * Traits::slot + panel * Traits::slot_panel;
#pragma unroll 4
    for (int pass = 0; pass < passes; ++pass) {
      const uint4 bytes = *reinterpret_cast<const uint4*>(staged(stage, pass));
      const int row = pass * rows_per_pass + thread / units;
      const uint4 low = widen({bytes.x, bytes.y});
      const uint4 high = widen({bytes.z, bytes.w});
      // Odd panels store the other half first: eight lanes of a row then meet eight different bank groups.
      const bool swap = (panel & 1) != 0;
      const int first = unit % 4 * 2 + (swap ? 1 : 0);
      *reinterpret_cast<uint4*>(to + row * 128 + ((first ^ row) & 7) * 16) = swap ? high : low;
      *reinterpret_cast<uint4*>(to + row * 128 + ((first ^ 1 ^ row) & 7) * 16) = swap ? low : high;
    }
  }

  /// FP8 tiles are copied into stages, several ahead of the one that is widened. A thread widens what it has copied
  /// itself, so that it has no other thread to wait for.
  __device__ void produce_f8(const Work& work, std::int32_t limit, std::int32_t min_limit) {
    constexpr int ahead = Traits::stages - 1;
    const int tiles = 2 * (work.end - work.begin);  // K, V, K, V, ...
    int fetched = 0;
    int fetch_stage = 0;
    int stage = 0;
    ChunkRows rows{};
    const auto fetch = [&] {
      if (fetched < tiles) {
        if (fetched % 2 == 0) rows = find_chunk(work, work.begin + fetched / 2, chunks++, limit, min_limit);
        for_rows<passes>(rows, fetched % 2 != 0, 0, [&](int row, const char* from) {
          copy_async_16(shared_address(staged(fetch_stage, row / rows_per_pass)), from, true);
        });
        fetch_stage = fetch_stage + 1 == Traits::stages ? 0 : fetch_stage + 1;
        ++fetched;
      }
      copy_async_commit();  // empty at the end: the count of groups below stays right
    };
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) fetch();
    if (tiles > 0) load_queries(work);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      fetch();
      copy_async_wait<ahead>();
      const std::uint32_t slot = acquire();
      widen_stage(stage, slot);
      stage = stage + 1 == Traits::stages ? 0 : stage + 1;
      hand_over(slot);
    }
  }

  __device__ void run() {
    for_each_work<Traits>(parameters, shared, [&](const Work& work) {
      std::int32_t limit = 0x7FFFFFFF;
      if (lane < work.num_rows) limit = p.routes.rows[work.row_begin + lane].limit;
      const std::int32_t min_limit = __reduce_min_sync(0xFFFFFFFFu, limit);
      entries = work.entries(parameters);
      fetch_entry(work, work.begin);
      const KvCache& k = p.problem.k;
      const KvCache& v = p.problem.v;
      k_head = static_cast<const char*>(k.data) + work.kv_head * k.stride_head * element_size;
      v_head = static_cast<const char*>(v.data) + work.kv_head * v.stride_head * element_size;
      if (work.begin == work.end) load_queries(work);
      if constexpr (Traits::f8) {
        produce_f8(work, limit, min_limit);
      } else {
        produce(work, limit, min_limit);
      }
      ++works;
    });
    copy_async_wait_all();  // no copy may be in flight when the thread block ends
  }
};

}  // namespace kvsieve::cuda::sm90
