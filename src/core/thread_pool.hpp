// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend's threads: started at the first parallel call, shared by all calls of the process, no allocation
// afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvsieve {

class ThreadPool {
 public:
  static ThreadPool& instance();

  /// Cores that this process may run on, at least 1. The pool has one thread fewer, the caller being the last.
  int size() const noexcept { return size_; }

  /// Calls body(task, worker) once for each task in [0, num_tasks), on up to `max_workers` threads (the caller is one
  /// of them) with worker in [0, max_workers), and returns when all are done. `body` must not throw. While one caller
  /// uses the pool, others run their tasks on their own thread alone: nothing waits for a stranger's work.
  template <class Body>
  void parallel_for(std::int64_t num_tasks, int max_workers, const Body& body) {
    static_assert(std::is_nothrow_invocable_v<const Body&, std::int64_t, int>);
    run(
        num_tasks, max_workers,
        [](const void* context, std::int64_t task, int worker) noexcept {
          (*static_cast<const Body*>(context))(task, worker);
        },
        &body);
  }

  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  using TaskFunction = void (*)(const void*, std::int64_t, int) noexcept;

  ThreadPool();
  void run(std::int64_t num_tasks, int max_workers, TaskFunction function, const void* context);
  void start_threads();
  void worker_loop();
  void claim_tasks(int worker) noexcept;

  int size_ = 1;
  std::atomic<bool> busy_{false};  ///< some caller's job is in the fields below
  std::vector<std::thread> threads_;
  int process_id_ = 0;  ///< the process that the threads live in; a forked child has none of them

  // The job. Written while the gate is shut, read by workers that have joined.
  TaskFunction function_ = nullptr;
  const void* context_ = nullptr;
  std::int64_t num_tasks_ = 0;
  int max_workers_ = 0;
  std::atomic<std::int64_t> next_task_{0};
  std::atomic<int> next_worker_{0};

  /// Bit 31: a job is open for joining. Low bits: workers that have joined and not left. A worker that wakes late finds
  /// the gate shut and delays nobody.
  std::atomic<std::uint32_t> gate_{0};
  std::atomic<std::uint32_t> epoch_{0};  ///< counts jobs; idle workers wait for it to change
  std::atomic<bool> stopping_{false};
};

}  // namespace kvsieve
