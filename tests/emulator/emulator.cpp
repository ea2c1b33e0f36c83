// SPDX-License-Identifier: Apache-2.0
#include "emulator/emulator.hpp"

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

namespace kvsieve::emulator {
namespace {

namespace context = boost::context;

constexpr int warp_size = 32;
constexpr int warpgroup_size = 128;
constexpr int num_named_barriers = 16;
constexpr int patience = 2000;  ///< rounds over all threads in which nobody gets on

/// Values of a fixed number of threads, all of which call it.
struct Exchange {
  std::vector<std::uint64_t> values[2];
  int arrived = 0;
  std::uint64_t completed = 0;
};

struct NamedBarrier {
  int arrived = 0;
  std::uint64_t completed = 0;
};

/// Something that a thread has set going: a copy, the end of a group of copies, or an arrival.
struct Pending {
  enum Kind { copy, group, arrival } kind = copy;
  void* to = nullptr;
  const void* from = nullptr;
  std::function<void()> arrive;
};

struct Warpgroup {
  std::vector<void*> parts;
  std::vector<std::vector<std::function<void()>>> groups;  ///< of products not done; the last one is open
  std::uint64_t calls = 0;                                 ///< completed
  int arrived = 0;
};

struct Block;

struct Thread {
  Block* block = nullptr;
  unsigned index = 0;
  bool done = false;
  context::fiber fiber;
  std::deque<Pending> pending;
  std::uint64_t warp_exchanges = 0, block_exchanges = 0, warpgroup_calls = 0;
};

struct Cluster;

struct Block {
  Cluster* cluster = nullptr;
  unsigned index = 0;
  std::unique_ptr<unsigned char[]> memory;
  unsigned char* shared = nullptr;
  std::vector<Thread> threads;
  std::vector<Exchange> warps;
  std::vector<Warpgroup> warpgroups;
  Exchange exchange;
  NamedBarrier barriers[num_named_barriers];
};

struct Cluster {
  Grid grid;
  std::vector<Block> blocks;
  NamedBarrier barrier;
  std::mt19937_64 random;
  std::uint64_t progress = 0;
};

Thread* current = nullptr;
context::fiber scheduler;

Cluster& cluster() { return *current->block->cluster; }
bool chance(int percent) { return static_cast<int>(cluster().random() % 100) < percent; }

void settle(Thread& thread) {
  Pending next = std::move(thread.pending.front());
  thread.pending.pop_front();
  if (next.kind == Pending::copy) {
    if (next.from != nullptr) {
      std::memcpy(next.to, next.from, 16);
    } else {
      std::memset(next.to, 0, 16);
    }
  } else if (next.kind == Pending::arrival) {
    next.arrive();
    ++thread.block->cluster->progress;
  }
}

/// Lets some of a thread's copies land.
void settle_some(Thread& thread) {
  if (thread.pending.empty() || chance(60)) return;
  const std::size_t count = chance(50) ? thread.pending.size() : cluster().random() % thread.pending.size() + 1;
  for (std::size_t i = 0; i < count; ++i) settle(thread);
}

void run_cluster(const Grid& grid, unsigned first_block, const std::function<void()>& program,
                 context::pooled_fixedsize_stack& stacks) {
  Cluster all;
  all.grid = grid;
  all.random.seed(grid.seed + first_block);
  all.blocks.resize(static_cast<std::size_t>(grid.cluster));
  for (unsigned b = 0; b < all.blocks.size(); ++b) {
    Block& block = all.blocks[b];
    block.cluster = &all;
    block.index = first_block + b;
    constexpr std::size_t alignment = 1024;
    block.memory = std::make_unique<unsigned char[]>(grid.shared_bytes + alignment);
    const auto base = reinterpret_cast<std::uintptr_t>(block.memory.get());
    block.shared = block.memory.get() + (alignment - base % alignment) % alignment;
    std::memset(block.shared, 0xFF, grid.shared_bytes);
    block.threads.resize(static_cast<std::size_t>(grid.threads));
    block.warps.resize(static_cast<std::size_t>(grid.threads / warp_size));
    block.warpgroups.resize(static_cast<std::size_t>((grid.threads + warpgroup_size - 1) / warpgroup_size));
    for (Exchange& warp : block.warps) {
      for (auto& values : warp.values) values.resize(warp_size);
    }
    for (auto& values : block.exchange.values) values.resize(block.threads.size());
    for (Warpgroup& warpgroup : block.warpgroups) {
      warpgroup.parts.resize(warpgroup_size);
      warpgroup.groups.emplace_back();
    }
    for (unsigned t = 0; t < block.threads.size(); ++t) {
      Thread& thread = block.threads[t];
      thread.block = &block;
      thread.index = t;
      thread.fiber = context::fiber(std::allocator_arg, stacks, [&program, &thread](context::fiber&& from) {
        scheduler = std::move(from);
        program();
        thread.done = true;
        ++thread.block->cluster->progress;
        return std::move(scheduler);
      });
    }
  }
  std::size_t left = all.blocks.size() * static_cast<std::size_t>(grid.threads);
  std::uint64_t seen = 0;
  for (int idle = 0; left > 0; ++idle) {
    for (Block& block : all.blocks) {
      for (Thread& thread : block.threads) {
        current = &thread;
        settle_some(thread);
        if (thread.done) continue;
        thread.fiber = std::move(thread.fiber).resume();
        if (!thread.done) continue;
        --left;
        if (!thread.pending.empty()) fail("a thread ended with copies in flight");
      }
    }
    if (all.progress != seen) idle = 0;
    seen = all.progress;
    if (idle > patience) fail("no thread can go on");
  }
  current = nullptr;
}

const std::uint64_t* exchange_among(Exchange& exchange, std::uint64_t& calls, unsigned place, std::uint64_t value) {
  const std::uint64_t call = calls++;
  auto& values = exchange.values[call % 2];
  values[place] = value;
  if (++exchange.arrived == static_cast<int>(values.size())) {
    exchange.arrived = 0;
    exchange.completed = call + 1;
  }
  wait_until([&] { return exchange.completed > call; });
  return values.data();
}

void sync(NamedBarrier& barrier, int threads) {
  const std::uint64_t call = barrier.completed;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.completed;
  }
  wait_until([&] { return barrier.completed > call; });
}

Warpgroup& warpgroup() { return current->block->warpgroups[current->index / warpgroup_size]; }

/// Calls `last` for the last of the warpgroup's threads to come here.
void with_warpgroup(const std::function<void()>& last) {
  Warpgroup& group = warpgroup();
  const std::uint64_t call = current->warpgroup_calls++;
  if (++group.arrived == warpgroup_size) {
    group.arrived = 0;
    last();
    group.calls = call + 1;
  }
  wait_until([&] { return group.calls > call; });
}

}  // namespace

Index thread_index() { return {current->index, 0, 0}; }
Index block_index() { return {current->block->index, 0, 0}; }
Index block_size() { return {static_cast<unsigned>(cluster().grid.threads), 1, 1}; }
Index grid_size() { return {static_cast<unsigned>(cluster().grid.blocks), 1, 1}; }

void yield() { scheduler = std::move(scheduler).resume(); }

void wait_until(const std::function<bool()>& condition) {
  while (!condition()) yield();
  ++cluster().progress;
}

void run(const Grid& grid, const std::function<void()>& program) {
  context::pooled_fixedsize_stack stacks(std::size_t{96} << 10);
  for (std::int64_t block = 0; block < grid.blocks; block += grid.cluster) {
    run_cluster(grid, static_cast<unsigned>(block), program, stacks);
  }
}

unsigned char* block_memory() { return current->block->shared; }

std::uint32_t shared_address(const void* pointer) {
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(pointer) - current->block->shared;
  if (offset < 0 || offset > static_cast<std::ptrdiff_t>(cluster().grid.shared_bytes)) fail("not shared memory");
  const unsigned rank = current->block->index % static_cast<unsigned>(cluster().grid.cluster);
  return static_cast<std::uint32_t>(offset) | rank << 24;
}

void* shared_pointer(std::uint32_t address, std::size_t bytes) {
  const std::uint32_t rank = address >> 24;
  const std::uint32_t offset = address & 0xFFFFFF;
  if (rank >= cluster().blocks.size() || offset + bytes > cluster().grid.shared_bytes) fail("outside shared memory");
  return cluster().blocks[rank].shared + offset;
}

void sync_threads() { sync(current->block->barriers[0], cluster().grid.threads); }
void sync_named(int id, int threads) {
  if (id <= 0 || id >= num_named_barriers) fail("no such named barrier");
  sync(current->block->barriers[id], threads);
}
void sync_cluster() { sync(cluster().barrier, cluster().grid.threads * cluster().grid.cluster); }

const std::uint64_t* exchange(std::uint64_t value) {
  return exchange_among(current->block->warps[current->index / warp_size], current->warp_exchanges,
                        current->index % warp_size, value);
}
const std::uint64_t* exchange_in_block(std::uint64_t value) {
  return exchange_among(current->block->exchange, current->block_exchanges, current->index, value);
}

void copy_async_16(std::uint32_t to, const void* from, bool valid) {
  if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) fail("a copy that is not aligned");
  current->pending.push_back({Pending::copy, shared_pointer(to, 16), valid ? from : nullptr, {}});
}
void copy_async_commit() { current->pending.push_back({Pending::group, nullptr, nullptr, {}}); }
void copy_async_wait(int pending_groups) {
  const auto groups = [] {
    int count = 0;
    for (const Pending& one : current->pending) count += one.kind == Pending::group ? 1 : 0;
    return count;
  };
  while (groups() > pending_groups) settle(*current);
}
void copy_async_wait_all() {
  while (!current->pending.empty()) settle(*current);
}
void after_copies(const std::function<void()>& arrive) {
  current->pending.push_back({Pending::arrival, nullptr, nullptr, arrive});
}

void start_product(void* thread_part, const std::function<void(void* const* parts)>& compute) {
  Warpgroup& group = warpgroup();
  group.parts[current->index % warpgroup_size] = thread_part;
  with_warpgroup([&] {
    // Products of a warpgroup are done in order.
    const auto product = [compute, parts = group.parts] { compute(parts.data()); };
    const bool first = group.groups.size() == 1 && group.groups.front().empty();
    if (first && chance(50)) {
      product();
    } else {
      group.groups.back().push_back(product);
    }
  });
}
void commit_products() {
  with_warpgroup([] { warpgroup().groups.emplace_back(); });
}
void wait_products(int pending_groups) {
  with_warpgroup([&] {
    auto& groups = warpgroup().groups;
    while (static_cast<int>(groups.size()) - 1 > pending_groups) {
      for (const auto& product : groups.front()) product();
      groups.erase(groups.begin());
    }
  });
}

void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s", what);
  if (current != nullptr) std::fprintf(stderr, " (thread block %u, thread %u)", current->block->index, current->index);
  std::fprintf(stderr, "\n");
  std::abort();
}

}  // namespace kvsieve::emulator
