// SPDX-License-Identifier: Apache-2.0
//
// Runs CUDA kernels on the CPU: every thread of a thread block (or of a cluster of them) is a fiber. What the kernels
// say in PTX goes through the headers of src/cuda, which tests/emulator/include replaces; the rest is C++.
//
// It is for the logic: barriers, rings, layouts, who reads what and when. Copies land and products read their operands
// at any time that the rules allow, by a random choice, so that a wait that is missing shows. Speed, registers and the
// memory model are the GPU's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace kvsieve::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// Of the thread that runs.
Index thread_index();
Index block_index();
Index block_size();
Index grid_size();

/// Lets the others run.
void yield();
/// Lets the others run until the condition holds; when nobody can go on, prints where they are and aborts.
void wait_until(const std::function<bool()>& condition);

/// Calls the program for every thread of a grid.
struct Grid {
  std::int64_t blocks = 0;
  int threads = 0;
  int cluster = 1;
  std::size_t shared_bytes = 0;
  std::uint64_t seed = 0;  ///< of the random choices
};
void run(const Grid& grid, const std::function<void()>& program);

/// Dynamic shared memory of the thread block, poisoned at its start.
unsigned char* block_memory();
/// Shared memory as a number: the rank in the cluster in bits 24 and up, as on a GPU. Aborts for other memory.
std::uint32_t shared_address(const void* pointer);
/// The other way. Aborts when [address, address + bytes) is not in a thread block of the cluster.
void* shared_pointer(std::uint32_t address, std::size_t bytes);

void sync_threads();
void sync_named(int id, int threads);
void sync_cluster();

/// All lanes of the warp: the values of all, valid until the next exchange.
const std::uint64_t* exchange(std::uint64_t value);
/// All threads of the thread block: the values of all, valid until the next one.
const std::uint64_t* exchange_in_block(std::uint64_t value);

// Asynchronous copies of 16 bytes. They land in order, at any time.
void copy_async_16(std::uint32_t to, const void* from, bool valid);
void copy_async_commit();
void copy_async_wait(int pending_groups);
void copy_async_wait_all();
/// Calls arrive() when all copies of this thread have landed.
void after_copies(const std::function<void()>& arrive);

/// A product of the warpgroup: 128 threads call it, `compute` of the last one is called for all. It runs at once, or
/// when the warpgroup waits for it.
void start_product(void* thread_part, const std::function<void(void* const* parts)>& compute);
void commit_products();
void wait_products(int pending_groups);

[[noreturn]] void fail(const char* what);

}  // namespace kvsieve::emulator
