// SPDX-License-Identifier: Apache-2.0
#include "core/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvsieve {
namespace {

constexpr std::uint32_t open_bit = 1u << 31;

/// How long an idle worker polls before it sleeps. Decode calls follow each other within tens of microseconds, and
/// waking a sleeping thread costs about as much as such a call.
constexpr auto poll_time = std::chrono::microseconds(100);

void relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  static ThreadPool pool;
  return pool;
}

ThreadPool::ThreadPool() : size_(usable_cores()) {}

ThreadPool::~ThreadPool() {
  if (getpid() != process_id_) {  // forked child: the threads exist only in the parent
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::start_threads() {
  process_id_ = getpid();
  threads_.reserve(static_cast<std::size_t>(size_ - 1));
  for (int i = 1; i < size_; ++i) threads_.emplace_back([this] { worker_loop(); });
}

void ThreadPool::run(std::int64_t num_tasks, int max_workers, TaskFunction function, const void* context) {
  const std::int64_t workers = std::min<std::int64_t>({num_tasks, max_workers, size_});
  bool alone = workers <= 1 || busy_.exchange(true, std::memory_order_acquire);
  if (!alone && threads_.empty()) start_threads();
  if (!alone && getpid() != process_id_) {  // a forked child has no workers
    alone = true;
    busy_.store(false, std::memory_order_release);
  }
  if (alone) {
    for (std::int64_t task = 0; task < num_tasks; ++task) function(context, task, 0);
    return;
  }

  function_ = function;
  context_ = context;
  num_tasks_ = num_tasks;
  max_workers_ = static_cast<int>(workers);
  next_task_.store(0, std::memory_order_relaxed);
  next_worker_.store(1, std::memory_order_relaxed);
  gate_.store(open_bit, std::memory_order_release);
  epoch_.fetch_add(1);
  epoch_.notify_all();

  claim_tasks(0);
  gate_.fetch_and(~open_bit, std::memory_order_acq_rel);
  for (int polls = 0; gate_.load(std::memory_order_acquire) != 0; ++polls) {
    if (polls < 4096) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::claim_tasks(int worker) noexcept {
  for (;;) {
    const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    function_(context_, task, worker);
  }
}

void ThreadPool::worker_loop() {
  std::uint32_t seen = 0;
  while (!stopping_.load()) {
    // Wait for the next job, polling first.
    const auto sleep_at = std::chrono::steady_clock::now() + poll_time;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      relax();
      if (std::chrono::steady_clock::now() > sleep_at) epoch_.wait(seen, std::memory_order_acquire);
    }
    seen = epoch_.load(std::memory_order_acquire);

    // Join it if it is still open.
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    bool joined = false;
    while ((gate & open_bit) != 0 && !joined) {
      joined = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed);
    }
    if (!joined) continue;
    const int worker = next_worker_.fetch_add(1, std::memory_order_relaxed);
    if (worker < max_workers_) claim_tasks(worker);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace kvsieve
