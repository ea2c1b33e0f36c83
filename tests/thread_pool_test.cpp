// SPDX-License-Identifier: Apache-2.0
#include "core/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvsieve {
namespace {

/// Runs `num_tasks` tasks and checks that each ran once, with a worker index in range that no other thread had.
void run_and_check(std::int64_t num_tasks, int max_workers) {
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(num_tasks));
  std::vector<std::atomic<int>> in_use(static_cast<std::size_t>(std::max(max_workers, 1)));
  std::atomic<int> faults{0};
  ThreadPool::instance().parallel_for(num_tasks, max_workers, [&](std::int64_t task, int worker) noexcept {
    if (worker < 0 || worker >= std::max(max_workers, 1)) {
      ++faults;
      return;
    }
    if (in_use[static_cast<std::size_t>(worker)].exchange(1) != 0) ++faults;
    ++runs[static_cast<std::size_t>(task)];
    in_use[static_cast<std::size_t>(worker)].store(0);
  });
  EXPECT_EQ(faults.load(), 0);
  for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
}

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int repeat = 0; repeat < 500; ++repeat) {
    for (const std::int64_t num_tasks : {0, 1, 2, 7, 64}) run_and_check(num_tasks, 1 + repeat % 5);
  }
}

TEST(ThreadPool, CallersDoNotWaitForEachOther) {
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([] {
      for (int repeat = 0; repeat < 200; ++repeat) run_and_check(16, 4);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, ATaskMayCallThePoolAgain) {
  std::atomic<int> runs{0};
  ThreadPool::instance().parallel_for(8, 4, [&](std::int64_t, int) noexcept {
    ThreadPool::instance().parallel_for(8, 4, [&](std::int64_t, int) noexcept { ++runs; });
  });
  EXPECT_EQ(runs.load(), 64);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow threads through a fork
TEST(ThreadPool, WorksInAForkedChild) {
  run_and_check(16, 4);  // the threads exist before the fork
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> runs{0};
    ThreadPool::instance().parallel_for(16, 4, [&](std::int64_t, int) noexcept { ++runs; });
    _exit(runs.load() == 16 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace kvsieve
