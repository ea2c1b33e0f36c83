// SPDX-License-Identifier: Apache-2.0
//
// What a thread block of the Hopper attend kernel works on: whole works in turns with the others, then its share of
// those that are left, whose number does not come out even.
#pragma once

#include <cub/block/block_scan.cuh>

#include "attend/cuda_sm90/traits.cuh"

namespace kvsieve::cuda::sm90 {

__device__ __forceinline__ std::uint32_t num_works(const Parameters& p) {
  return static_cast<std::uint32_t>(p.attend.routes.num_tiles * p.attend.problem.num_kv_heads);
}

/// One tile of one KV head, or some of its chunks of keys.
struct Work {
  std::uint32_t tile;
  std::int64_t row_begin;
  std::int32_t kv_head;
  std::int32_t num_rows;  ///< query rows
  std::int64_t route;
  std::int32_t num_entries;
  std::int32_t begin, end;        ///< chunks of keys
  std::int32_t state = no_state;  ///< where the state goes, when these are not all chunks

  /// All of it. Long tiles (late tokens) come first; the KV head changes slowest, so that thread blocks that run at the
  /// same time share a head's keys in L2.
  template <class Traits>
  __device__ Work(const Parameters& p, std::uint32_t index, Traits) : begin(0) {
    const DeviceRoutes& routes = p.attend.routes;
    const auto num_tiles = static_cast<std::uint32_t>(routes.num_tiles);
    kv_head = static_cast<std::int32_t>(index / num_tiles);
    tile = num_tiles - 1 - (index - kv_head * num_tiles);
    row_begin = tile * routes.tile_rows;
    num_rows = static_cast<std::int32_t>(min(routes.tile_rows, p.attend.problem.total_q - row_begin));
    route = tile * routes.num_lists + (routes.num_lists == 1 ? 0 : kv_head);
    num_entries = routes.counts[route];
    const std::uint32_t keys = static_cast<std::uint32_t>(num_entries) << p.attend.block_shift;
    end = static_cast<std::int32_t>((keys + Traits::chunk - 1) / Traits::chunk);
  }

  __device__ const DeviceRouteEntry* entries(const Parameters& p) const {
    return p.attend.routes.entries + route * p.attend.routes.capacity;
  }
};

/// A thread block's share of the works that are not dealt whole: from chunk `begin_chunk` of work `begin` to before
/// chunk `end_chunk` of work `end`.
struct alignas(16) Share {
  std::uint32_t begin, end;
  std::int32_t begin_chunk, end_chunk;
};

/// Cuts the chunks of the shared works, end to end, into equal shares and finds this thread block's; for
/// for_each_work(). All threads. The cuts depend on the routes alone, not on who is how fast.
template <class Traits>
struct Shares {
  static constexpr int threads = Traits::threads;
  using Scan = cub::BlockScan<std::int32_t, threads>;
  static_assert(sizeof(typename Scan::TempStorage) <= Traits::slots * Traits::slot);
  /// Shares are at least this long, and cuts this near to the end of a work move there: a state costs about as much.
  static constexpr int least_chunks = 4;
  static constexpr int near = 2;

  const Parameters& p;
  unsigned char* shared;
  std::uint32_t first;   ///< work
  int count;             ///< works
  std::int32_t* prefix;  ///< [count + 1]: chunks before each

  __device__ Shares(const Parameters& parameters, unsigned char* shared_memory)
      : p(parameters),
        shared(shared_memory),
        first(parameters.schedule.whole_works),
        count(static_cast<int>(num_works(parameters) - parameters.schedule.whole_works)),
        prefix(reinterpret_cast<std::int32_t*>(shared_memory + Traits::prefix_at)) {}

  __device__ void cut() const {
    auto* const share = reinterpret_cast<Share*>(shared + Traits::share_at);
    const std::int32_t total = add_up();
    const auto blocks = static_cast<std::uint32_t>(min(max(total / least_chunks, 1), static_cast<int>(gridDim.x)));
    const bool empty = blockIdx.x >= blocks;
    find(empty ? total : position(total, blockIdx.x, blocks), share->begin, share->begin_chunk);
    find(empty ? total : position(total, blockIdx.x + 1, blocks), share->end, share->end_chunk);
    __syncthreads();
    if (threadIdx.x == 0) write_states(*share);
  }

 private:
  /// Chunks of a work; 1 for one without, which has rows to write all the same.
  __device__ std::int32_t chunks(int i) const { return max(Work(p, first + i, Traits()).end, 1); }

  __device__ std::int32_t add_up() const {
    auto& memory = *reinterpret_cast<typename Scan::TempStorage*>(shared + Traits::slots_at);
    std::int32_t total = 0;
    for (int base = 0; base < count; base += threads) {
      const int i = base + static_cast<int>(threadIdx.x);
      std::int32_t before = 0;
      std::int32_t sum = 0;
      Scan(memory).ExclusiveSum(i < count ? chunks(i) : 0, before, sum);
      if (i < count) prefix[i] = total + before;
      total += sum;
      __syncthreads();
    }
    if (threadIdx.x == 0) prefix[count] = total;
    __syncthreads();
    return total;
  }

  __device__ static std::int32_t position(std::int32_t total, std::uint32_t block, std::uint32_t blocks) {
    return static_cast<std::int32_t>(std::int64_t{total} * block / blocks);
  }

  /// The work and the chunk at a position, moved to the end of a work that is near.
  __device__ void find(std::int32_t at, std::uint32_t& work, std::int32_t& chunk) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
      if (at < prefix[i] || at >= prefix[i + 1]) continue;
      const bool to_begin = at - prefix[i] < near;
      const bool to_end = !to_begin && prefix[i + 1] - at < near;
      work = first + i + (to_end ? 1 : 0);
      chunk = to_begin || to_end ? 0 : at - prefix[i];
    }
    if (threadIdx.x == 0 && at >= prefix[count]) {
      work = first + count;
      chunk = 0;
    }
  }

  /// Says whose the thread block's states are, for combine_shares().
  __device__ void write_states(const Share& share) const {
    std::int32_t* const works = p.states.works + 2 * blockIdx.x;
    works[0] = share.begin_chunk > 0 ? static_cast<std::int32_t>(share.begin) : no_state;
    works[1] = no_state;
    const bool is_empty = share.begin == share.end && share.begin_chunk == share.end_chunk;
    if (is_empty) {
      works[0] = empty_share;
    } else if (share.end_chunk > 0 && (share.end != share.begin || share.begin_chunk == 0)) {
      works[1] = static_cast<std::int32_t>(share.end);
    }
  }
};

/// Calls each(work) for all that this thread block works on.
template <class Traits, class Each>
__device__ __forceinline__ void for_each_work(const Parameters& p, const unsigned char* shared, const Each& each) {
  const std::uint32_t whole = p.schedule.whole_works;
  const bool shares = whole < num_works(p);
  const Share share = shares ? *reinterpret_cast<const Share*>(shared + Traits::share_at) : Share{0, 0, 0, 0};
  const auto after_whole = share.end + (share.end_chunk > 0 ? 1 : 0);
  std::uint32_t index = blockIdx.x;
  bool is_whole = true;
  while (true) {
    if (is_whole && index >= whole) {
      is_whole = false;
      index = share.begin;
    }
    if (!is_whole && index >= after_whole) break;
    Work work(p, index, Traits());
    if (!is_whole) {
      if (index == share.end) {
        work.end = min(work.end, share.end_chunk);
        work.state = static_cast<std::int32_t>(2 * blockIdx.x + 1);
      }
      if (index == share.begin && share.begin_chunk > 0) {
        work.begin = share.begin_chunk;
        work.state = static_cast<std::int32_t>(2 * blockIdx.x);
      }
    }
    each(work);
    index += is_whole ? gridDim.x : 1;
  }
}

}  // namespace kvsieve::cuda::sm90
