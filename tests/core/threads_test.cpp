// The thread pool: every task once, thread numbers in range, results visible after run, no lost wake-ups.
#include "core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace nibble {
namespace {

TEST(ThreadPool, EveryTaskRunsOnceOnAThreadInRange) {
  for (const int threads : {1, 2, 4, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 5000}) {
      std::vector<int> runs(static_cast<size_t>(tasks)), on(static_cast<size_t>(tasks), -1);  // each task its own slot
      pool.run(tasks, [&](int64_t task, int thread) {
        ++runs[static_cast<size_t>(task)];
        on[static_cast<size_t>(task)] = thread;
      });
      for (size_t i = 0; i < runs.size(); ++i) {
        ASSERT_EQ(runs[i], 1) << "task " << i << " of " << tasks << ", " << threads << " threads";
        ASSERT_TRUE(on[i] >= 0 && on[i] < threads) << on[i];
      }
    }
  }
}

TEST(ThreadPool, OneTaskAndOneThreadRunInlineInOrder) {
  const std::thread::id caller = std::this_thread::get_id();
  ThreadPool four(4), one(1);
  four.run(1, [&](int64_t, int thread) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  std::vector<int64_t> order;
  one.run(5, [&](int64_t task, int thread) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(task);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

// Each region reads what the one before it wrote, so a worker late by one region would be seen.
TEST(ThreadPool, ManySmallRegionsInARow) {
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    constexpr int64_t regions = 100000, tasks = 3;
    int64_t slots[tasks] = {};
    for (int64_t r = 0; r < regions; ++r)
      pool.run(tasks, [&slots, r](int64_t task, int) { slots[task] = slots[task] == r ? r + 1 : -1; });
    for (const int64_t s : slots) EXPECT_EQ(s, regions) << threads;
  }
}

TEST(ThreadPool, AWorkerWakesFromSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // far longer than a worker spins
    // Task 0 waits for task 1: done only if the worker wakes and takes one of the two.
    std::atomic<bool> second{false};
    pool.run(2, [&](int64_t task, int) {
      if (task == 1) second = true;
      while (!second) std::this_thread::yield();
    });
    EXPECT_TRUE(second);
  }
}

TEST(ThreadPool, TheCallerWaitsForALongTaskOfAWorker) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> started{0};
    int slept[2] = {};
    pool.run(2, [&](int64_t task, int thread) {
      ++started;
      while (started < 2) std::this_thread::yield();  // both threads hold one task
      if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      slept[task] = 1;
    });
    EXPECT_EQ(slept[0] + slept[1], 2);
  }
}

TEST(ThreadPool, IsDestroyedAsleepSpinningOrUnused) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool unused(8);
    ThreadPool spinning(4);
    std::atomic<int64_t> sum{0};
    spinning.run(10, [&](int64_t task, int) { sum += task; });
    EXPECT_EQ(sum, 45);
  }
  ThreadPool asleep(4);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace
}  // namespace nibble
