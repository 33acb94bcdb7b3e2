// The one pool of CPU threads. A parallel region hands out task numbers 0..n-1 in ascending order; every task writes
// its own outputs, so which thread runs which task never changes a result. Workers spin briefly for the next region
// and sleep otherwise: machines are shared.
#pragma once
#include <cstdint>
#include <memory>

namespace nibble {

class ThreadPool {
 public:
  /// threads >= 1: the caller counts as one. Starts threads - 1 workers.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int size() const;

  /// Calls f(task, thread) for every task in [0, tasks), returns when all are done; thread in [0, size()).
  /// Never allocates. f must not throw, and must not start another region. One task, or one thread: runs inline.
  template <class F>
  void run(int64_t tasks, const F& f) {
    run_tasks(
        tasks, [](const void* self, int64_t task, int thread) { (*static_cast<const F*>(self))(task, thread); }, &f);
  }

 private:
  using Body = void (*)(const void* self, int64_t task, int thread);
  void run_tasks(int64_t tasks, Body body, const void* self);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
