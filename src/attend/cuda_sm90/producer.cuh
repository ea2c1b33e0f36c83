// SPDX-License-Identifier: Apache-2.0
//
// The producer warpgroup of the Hopper attend kernel: finds the keys of each chunk and brings their rows of K and V
// into the ring of slots, 16 bytes at a time.
#pragma once

#include "attend/cuda_sm90/traits.cuh"
#include "cuda/convert.cuh"
#include "cuda/ptx.cuh"

namespace kvsieve::cuda::sm90 {

template <class Traits>
struct Producer {
  static constexpr int unit_elements = Traits::f8 ? 16 : 8;  ///< of 16 bytes in global memory
  static constexpr int units = Traits::dim / unit_elements;
  static constexpr int rows_per_pass = 128 / units;
  static constexpr int passes = Traits::chunk / rows_per_pass;
  // FP8 rows go through registers: passes that are fetched together, one batch ahead of the one that is widened.
  static constexpr int batch = std::min(passes, Traits::dim == 256 && Traits::shifts_registers ? 4 : 8);
  static constexpr int batches = passes / batch;

  const AttendParameters& p;
  const Parameters& parameters;
  unsigned char* shared;
  Barriers<Traits> barriers;
  int thread = static_cast<int>(threadIdx.x) % 128;
  int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::slots> position;  ///< of the next K or V tile
  std::uint32_t chunks = 0;              ///< found so far
  std::uint32_t works = 0;               ///< done so far
  DeviceRouteEntry next_entry;           ///< of this thread's key in the next chunk

  __device__ Producer(const Parameters& all, unsigned char* shared_memory, Barriers<Traits> all_barriers)
      : p(all.attend), parameters(all), shared(shared_memory), barriers(all_barriers) {}

  /// Addresses of the keys' rows in K, or in V; null where no row attends to the key: zeros take its place.
  __device__ const char** sources(std::uint32_t chunk, bool values) const {
    return reinterpret_cast<const char**>(shared + Traits::sources_at) +
           (chunk % 2 * 2 + (values ? 1 : 0)) * Traits::chunk;
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
    const int group = static_cast<int>(p.problem.group());
    const int tokens = parameters.schedule.warpgroup_tokens;
    const RowHeads& q = p.problem.q;
#pragma unroll 1
    for (int i = thread; i < work.num_rows * group * query_units; i += 128) {
      const int token = i / query_units / group;
      const int head = i / query_units - token * group;
      const int unit = i % query_units;
      const int warpgroup = (token >= tokens) + (token >= 2 * tokens);
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

  /// Loads the entry of this thread's key in a chunk, well before find_keys() needs it.
  __device__ void fetch_entry(const Work& work, std::int32_t chunk) {
    const std::int32_t index = (chunk * Traits::chunk + thread) >> p.block_shift;
    next_entry = {-1, 0, 0, 0};
    if (thread < Traits::chunk && index < work.num_entries) next_entry = work.entries[index];
  }

  __device__ static const char* row_of_key(const KvCache& cache, const Work& work, const DeviceRouteEntry& entry,
                                           std::int32_t offset) {
    if (entry.members == 0) return nullptr;
    constexpr std::int64_t element_size = Traits::f8 ? 1 : 2;
    const std::int64_t element = entry.page * cache.stride_page + work.kv_head * cache.stride_head +
                                 std::int64_t{entry.slot + offset} * cache.stride_token;
    return static_cast<const char*>(cache.data) + element * element_size;
  }

  /// Finds the keys of a chunk, one thread a key, and which rows attend to each.
  __device__ void find_keys(const Work& work, std::int32_t chunk, std::uint32_t buffer, std::int32_t lane_limit,
                            std::int32_t min_limit) {
    DeviceRouteEntry entry = next_entry;
    fetch_entry(work, chunk + 1);
    if (thread < Traits::chunk) {
      const std::int32_t key = chunk * Traits::chunk + thread;
      const auto offset = static_cast<std::int32_t>(key & (p.problem.block_size - 1));
      const auto position = static_cast<std::int32_t>(entry.block * p.problem.block_size + offset);
      // Keys past a row's limit do not count for it; what no row attends to is never read, it may be anything.
      if (__any_sync(0xFFFFFFFFu, position > min_limit)) {
        for (int row = 0; row < work.num_rows; ++row) {
          if (position > __shfl_sync(0xFFFFFFFFu, lane_limit, row)) entry.members &= ~(1u << row);
        }
      }
      sources(buffer, false)[thread] = row_of_key(p.problem.k, work, entry, offset);
      sources(buffer, true)[thread] = row_of_key(p.problem.v, work, entry, offset);
      members(buffer)[thread] = entry.members;
      const std::uint32_t some = __reduce_or_sync(0xFFFFFFFFu, entry.members);
      const std::uint32_t all = __reduce_and_sync(0xFFFFFFFFu, entry.members);
      if (lane == 0) summaries(buffer)[thread / 32] = {some, all};
    }
    sync_named(1, 128);
  }

  /// Starts the copies of a chunk's rows of K or V into the next slot.
  __device__ void copy_rows(bool values, std::uint32_t buffer) {
    const std::uint32_t slot = acquire();
    const int unit = thread % units;
    const int first = thread / units;
    const char* const* const source = sources(buffer, values) + first;
    const std::uint32_t to =
        shared_address(shared) + Traits::slots_at + slot * Traits::slot + unit / 8 * Traits::slot_panel + first * 128;
    const void* const nothing = p.problem.k.data;
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      // (unit ^ row) & 7 with row = pass * rows_per_pass + first; the part of the pass is known here.
      const int swizzled = (unit ^ first ^ (pass * rows_per_pass)) & 7;
      const char* const row = source[pass * rows_per_pass];
      copy_async_16(to + pass * rows_per_pass * 128 + swizzled * 16, row != nullptr ? row + unit * 16 : nothing,
                    row != nullptr);
    }
    barriers.full(slot).arrive_after_copies();
    position = position.next();
  }

  /// The first K tile does not wait for the queries' place: it comes while the consumers end the tile before.
  __device__ void produce(const Work& work, std::int32_t limit, std::int32_t min_limit) {
    for (std::int32_t chunk = work.begin; chunk < work.end; ++chunk) {
      const std::uint32_t buffer = chunks++;
      find_keys(work, chunk, buffer, limit, min_limit);
      copy_rows(false, buffer);
      if (chunk == work.begin) load_queries(work);
      copy_rows(true, buffer);
    }
  }

  /// FP8: loads batch `number` of a tile's rows.
  __device__ void fetch(bool values, std::uint32_t buffer, int number, uint4 (&rows)[batch]) const {
    const char* const* const source = sources(buffer, values) + thread / units + number * batch * rows_per_pass;
#pragma unroll
    for (int pass = 0; pass < batch; ++pass) {
      const char* const row = source[pass * rows_per_pass];
      rows[pass] = uint4{0, 0, 0, 0};
      if (row != nullptr) rows[pass] = __ldg(reinterpret_cast<const uint4*>(row + thread % units * 16));
    }
  }

  /// FP8: widens a batch into its slot.
  __device__ void store(const uint4 (&rows)[batch], int number, std::uint32_t slot) const {
    const int unit = thread % units;
    const int panel = unit / 4;
    unsigned char* const to = shared + Traits::slots_at + slot * Traits::slot + panel * Traits::slot_panel;
#pragma unroll
    for (int pass = 0; pass < batch; ++pass) {
      const int row = (number * batch + pass) * rows_per_pass + thread / units;
      const uint4 low = widen({rows[pass].x, rows[pass].y});
      const uint4 high = widen({rows[pass].z, rows[pass].w});
      // Odd panels store the other half first: eight lanes of a row then meet eight different bank groups.
      const bool swap = (panel & 1) != 0;
      const int first = unit % 4 * 2 + (swap ? 1 : 0);
      *reinterpret_cast<uint4*>(to + row * 128 + ((first ^ row) & 7) * 16) = swap ? high : low;
      *reinterpret_cast<uint4*>(to + row * 128 + ((first ^ 1 ^ row) & 7) * 16) = swap ? low : high;
    }
  }

  __device__ void produce_f8(const Work& work, std::int32_t limit, std::int32_t min_limit) {
    if (work.begin == work.end) return;
    uint4 ahead[batch];
    find_keys(work, work.begin, chunks, limit, min_limit);
    fetch(false, chunks, 0, ahead);
    load_queries(work);
    for (std::int32_t chunk = work.begin; chunk < work.end; ++chunk) {
      const std::uint32_t buffer = chunks++;
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // K, V
        const std::uint32_t slot = acquire();
#pragma unroll
        for (int number = 0; number < batches; ++number) {
          uint4 rows[batch];
#pragma unroll
          for (int i = 0; i < batch; ++i) rows[i] = ahead[i];
          if (number + 1 < batches) {
            fetch(half == 1, buffer, number + 1, ahead);
          } else if (half == 0) {
            fetch(true, buffer, 0, ahead);
          } else if (chunk + 1 < work.end) {
            find_keys(work, chunk + 1, buffer + 1, limit, min_limit);
            fetch(false, buffer + 1, 0, ahead);
          }
          store(rows, number, slot);
        }
        barriers.full(slot).arrive();
        position = position.next();
      }
    }
  }

  __device__ void run() {
    for (std::uint32_t index = first_work(parameters); index < num_works(parameters);
         index += work_stride(parameters)) {
      const Work work(parameters, index, parameters.schedule.in_block_route ? shared : nullptr, Traits());
      std::int32_t limit = 0x7FFFFFFF;
      if (lane < work.num_rows) limit = work.rows[lane].limit;
      const std::int32_t min_limit = __reduce_min_sync(0xFFFFFFFFu, limit);
      fetch_entry(work, work.begin);
      if (work.begin == work.end) load_queries(work);
      if constexpr (Traits::f8) {
        produce_f8(work, limit, min_limit);
      } else {
        produce(work, limit, min_limit);
      }
      ++works;
    }
    copy_async_wait_all();  // no copy may be in flight when the thread block ends
  }
};

}  // namespace kvsieve::cuda::sm90
