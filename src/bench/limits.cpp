#include "bench/limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "bench/measure.h"
#include "core/version.h"
#include "kernels/cpu/probes.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// Floats in huge pages where the system has them, touched.
class Array {
 public:
  explicit Array(int64_t floats) : bytes_(static_cast<size_t>(floats) * 4) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<float*>(p);
    std::fill(data_, data_ + floats, 1.0f);
  }
  ~Array() { munmap(data_, bytes_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  float* data() const { return data_; }

 private:
  size_t bytes_;
  float* data_;
};

struct MemoryLoops {
  MemoryLoop *read, *copy, *stream_copy, *stream_fill;
};

constexpr int64_t group = 128;  // floats: what the loops advance by

class MemoryProbes {
 public:
  MemoryProbes(ThreadPool& pool, const CacheSizes& caches) : pool_(pool), caches_(caches) {
    const int64_t last = std::max<int64_t>(caches.l3, 16 << 20);
    floats_ = std::clamp<int64_t>(4 * last, 64 << 20, int64_t{1} << 30) / 4;
    from_ = std::make_unique<Array>(floats_), to_ = std::make_unique<Array>(floats_);
    sinks_.resize(static_cast<size_t>(pool.size()) * 16);
    loops_ = cpu_runs(CpuTarget::avx512)
                 ? MemoryLoops{avx512::read_loop, avx512::copy_loop, avx512::stream_copy_loop, avx512::stream_fill_loop}
                 : MemoryLoops{avx2::read_loop, avx2::copy_loop, avx2::stream_copy_loop, avx2::stream_fill_loop};
  }
  void measure(Limits& best) {
    const auto keep = [](double& field, double value) { field = std::max(field, value); };
    keep(best.read, memory(loops_.read, 1));
    keep(best.copy, memory(loops_.copy, 2));
    keep(best.stream_copy, memory(loops_.stream_copy, 2));
    keep(best.stream_fill, memory(loops_.stream_fill, 1));
    const int64_t n = pool_.size();
    if (caches_.l1 > 0) keep(best.l1, cached(caches_.l1 / 2));
    if (caches_.l2 > 0) keep(best.l2, cached(caches_.l2 / 2));
    // Half of the last level, shared by the threads; at least twice what the second level would hold.
    if (caches_.l3 > 0) keep(best.l3, cached(std::max(caches_.l3 / 2 / n, 2 * caches_.l2)));
  }

 private:
  // A quarter of the arrays, in pieces that the threads take in turn; the next time the next quarter, so that none is
  // still in a cache. A quarter takes about a millisecond: on a busy machine short pieces find a quiet moment.
  double memory(MemoryLoop* loop, int arrays) {
    const int64_t tasks = 4 * pool_.size(), piece = floats_ / 4 / tasks / group * group;
    const int64_t first = quarter_++ % 4 * (floats_ / 4 / group * group);
    const double start = now();
    pool_.run(tasks, [&](int64_t task, int thread) {
      const int64_t at = first + task * piece;
      loop(from_->data() + at, to_->data() + at, piece, 1, sink(thread));
    });
    return static_cast<double>(arrays * 4 * piece * tasks) / (now() - start);
  }
  // Each thread reads an array of its own again and again, for about 2 ms.
  double cached(int64_t bytes) {
    const int64_t n = std::min(bytes / 4, floats_ / pool_.size()) / group * group;
    const int64_t times = std::max<int64_t>(1, (int64_t{64} << 20) / (4 * n));
    const auto pass = [&](int64_t repeats) {
      pool_.run(pool_.size(), [&](int64_t task, int thread) {
        loops_.read(from_->data() + task * n, nullptr, n, repeats, sink(thread));
      });
    };
    pass(1);
    const double start = now();
    pass(times);
    return static_cast<double>(4 * n * times * pool_.size()) / (now() - start);
  }
  float* sink(int thread) { return &sinks_[static_cast<size_t>(thread) * 16]; }

  ThreadPool& pool_;
  CacheSizes caches_;
  int64_t floats_, quarter_ = 0;
  std::unique_ptr<Array> from_, to_;
  std::vector<float> sinks_;
  MemoryLoops loops_;
};

}  // namespace

Limits measure_limits(int threads, const CacheSizes& caches, double seconds) {
  Limits best{.threads = threads};
  if (!cpu_runs(CpuTarget::avx2)) return best;
  ThreadPool pool(threads);
  Peak f32(pool, "f32"), bf16(pool, "bf16"), int8(pool, "int8");
  MemoryProbes memory(pool, caches);
  const double start = now();
  for (int i = 0; i < 3 || now() - start < seconds; ++i) {
    best.f32 = std::max(best.f32, f32.measure());
    if (bf16.has_own_loop()) best.bf16 = std::max(best.bf16, bf16.measure());
    best.int8 = std::max(best.int8, int8.measure());
    memory.measure(best);
  }
  return best;
}

Limits limits_for(const Machine& machine, int threads) {
  if (const Limits* known = machine.limits_of(threads)) return *known;
  return measure_limits(threads, machine.caches, 0.5);
}

Limits limits_now(const Machine& machine, int threads, const Peak& peak) {
  Limits l = limits_for(machine, threads);
  const double known = l.peak(peak.format()), scale = known > 0 && peak.flops() > 0 ? peak.flops() / known : 1;
  l.f32 *= scale, l.bf16 *= scale, l.int8 *= scale;
  return l;
}

std::vector<int> thread_counts(int n) {
  std::vector<int> counts;
  for (int t = 1; t < n; t = t < 4 ? t + 1 : 2 * t) counts.push_back(t);
  counts.push_back(n);
  return counts;
}

std::string utc_text() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

BenchResult bench_limits(Machine& m, const std::vector<int>& threads, double seconds) {
  Machine measured = this_machine();
  measured.date = utc_text(), measured.version = fmt::format("{} {}", version, commit);
  for (const int n : threads) measured.limits.push_back(measure_limits(n, measured.caches, seconds));
  m.merge(measured);
  BenchResult r;
  r.json = Json::parse(machine_text(m));
  r.text = fmt::format("bench limits   {}   nibble {} {}\n", m.cpu, version, commit);
  r.text += fmt::format("caches {} KiB and {} KiB a core, {} MiB in all; the fastest of many repeats\n\n",
                        m.caches.l1 >> 10, m.caches.l2 >> 10, m.caches.l3 >> 20);
  r.text += fmt::format("{:>7}  {:>9}{:>9}{:>9}  {:>8}{:>8}{:>8}  {:>8}{:>8}{:>8}{:>8}\n", "", "GFLOP/s", "GFLOP/s",
                        "Gop/s", "GB/s", "", "", "GB/s", "", "stream", "stream");
  r.text += fmt::format("{:>7}  {:>9}{:>9}{:>9}  {:>8}{:>8}{:>8}  {:>8}{:>8}{:>8}{:>8}\n", "threads", "f32", "bf16",
                        "int8", "L1 load", "L2 load", "L3 load", "read", "copy", "copy", "fill");
  const auto number = [](double x) { return x > 0 ? fmt::format("{:.1f}", x / 1e9) : std::string("-"); };
  for (const Limits& l : m.limits)
    r.text += fmt::format("{:>7}  {:>9}{:>9}{:>9}  {:>8}{:>8}{:>8}  {:>8}{:>8}{:>8}{:>8}\n", l.threads, number(l.f32),
                          number(l.bf16), number(l.int8), number(l.l1), number(l.l2), number(l.l3), number(l.read),
                          number(l.copy), number(l.stream_copy), number(l.stream_fill));
  r.text +=
      "\nmemory: bytes read plus bytes written; a copy reads and writes, and without streaming stores the\n"
      "lines it writes are read first, which is not counted\n";
  return r;
}

}  // namespace nibble
