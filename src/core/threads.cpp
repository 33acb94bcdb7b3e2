// The pool's protocol. One 32-bit word says all a worker must know: the number of the region, whether it is open, and
// how many workers are inside. A worker joins by raising that count while the region is open; the caller closes the
// region when no task is left and waits for the count to reach zero. A worker that is still asleep by then never
// joins, so a short region never pays for waking one.
#include "core/threads.h"

#include <immintrin.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/float_mode.h"

namespace nibble {
namespace {

constexpr uint32_t inside_mask = 0xffff;   // workers inside the region
constexpr uint32_t open_bit = 1u << 16;    // tasks may be taken
constexpr uint32_t stop_bit = 1u << 17;    // the pool is being destroyed
constexpr uint32_t waited_bit = 1u << 18;  // the caller sleeps until the last worker is out
constexpr uint32_t one_region = 1u << 19;  // the region's number; that it wraps around is harmless
constexpr uint32_t region_mask = ~(one_region - 1);

// About 30 us on Zen 4 and Zen 3: longer than a small node between two regions, shorter than a scheduler's tick.
constexpr int spins = 2000;

}  // namespace

struct ThreadPool::Impl {
  explicit Impl(int threads) {
    workers.reserve(static_cast<size_t>(threads - 1));
    for (int t = 1; t < threads; ++t) workers.emplace_back([this, t] { work(t); });
  }
  ~Impl() {
    state.fetch_or(stop_bit, std::memory_order_release);
    state.notify_all();
    for (std::thread& w : workers) w.join();
  }

  void take_tasks(int thread) {
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      body(self, task, thread);
    }
  }

  // Returns the state once it differs from `seen`.
  uint32_t await_change(uint32_t seen) {
    for (int i = 0; i < spins; ++i) {
      const uint32_t s = state.load(std::memory_order_acquire);
      if (s != seen) return s;
      _mm_pause();
    }
    state.wait(seen, std::memory_order_acquire);
    return state.load(std::memory_order_acquire);
  }

  void work(int thread) {
    const FloatMode mode;  // a thread starts with that of its maker
    uint32_t done_region = 0, s = state.load(std::memory_order_acquire);
    while ((s & stop_bit) == 0) {
      if ((s & open_bit) == 0 || (s & region_mask) == done_region) {
        s = await_change(s);
      } else if (state.compare_exchange_weak(s, s + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        done_region = s & region_mask;
        take_tasks(thread);
        const uint32_t left = state.fetch_sub(1, std::memory_order_acq_rel) - 1;
        if ((left & inside_mask) == 0 && (left & waited_bit) != 0) state.notify_all();
        s = left;
      }
    }
  }

  void run(int64_t count, Body f, const void* object) {
    body = f, self = object, tasks = count;  // nobody is inside: the last region was left by all
    next.store(0, std::memory_order_relaxed);
    const uint32_t region = (state.load(std::memory_order_relaxed) & region_mask) + one_region;
    state.store(region | open_bit, std::memory_order_release);
    state.notify_all();
    take_tasks(0);
    uint32_t s = state.fetch_and(~open_bit, std::memory_order_acq_rel) & ~open_bit;
    for (int i = 0; i < spins && (s & inside_mask) != 0; ++i) {
      _mm_pause();
      s = state.load(std::memory_order_acquire);
    }
    if ((s & inside_mask) == 0) return;
    s = state.fetch_or(waited_bit, std::memory_order_acq_rel) | waited_bit;
    while ((s & inside_mask) != 0) {
      state.wait(s, std::memory_order_acquire);
      s = state.load(std::memory_order_acquire);
    }
  }

  alignas(64) std::atomic<uint32_t> state{0};
  alignas(64) std::atomic<int64_t> next{0};  // a line of its own: every task touches it
  alignas(64) int64_t tasks = 0;
  Body body = nullptr;
  const void* self = nullptr;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads < 1 ? 1 : threads)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run_tasks(int64_t tasks, Body body, const void* self) {
  const FloatMode mode;
  if (tasks <= 1 || impl_->workers.empty()) {
    for (int64_t task = 0; task < tasks; ++task) body(self, task, 0);
  } else {
    impl_->run(tasks, body, self);
  }
}

}  // namespace nibble
