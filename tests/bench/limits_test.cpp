// The loops that measure the machine do what they are counted for; what they find is plausible, whatever the machine.
#include "bench/limits.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/probes.h"

namespace nibble {
namespace {

struct Loops {
  CpuTarget needs;
  PeakLoop* fma;
  MemoryLoop *read, *copy, *stream_copy, *stream_fill;
};
const Loops loops[] = {
    {CpuTarget::avx2, avx2::fma_loop, avx2::read_loop, avx2::copy_loop, avx2::stream_copy_loop, avx2::stream_fill_loop},
    {CpuTarget::avx512, avx512::fma_loop, avx512::read_loop, avx512::copy_loop, avx512::stream_copy_loop,
     avx512::stream_fill_loop}};

TEST(BenchLimits, MemoryLoopsTouchEveryNumber) {
  constexpr int64_t n = 1024;
  alignas(64) float from[n], to[n];
  for (const Loops& l : loops) {
    if (!cpu_runs(l.needs)) continue;
    float sink = 1;
    for (int64_t i = 0; i < n; ++i) from[i] = static_cast<float>(i + 1);
    for (MemoryLoop* copy : {l.copy, l.stream_copy}) {
      std::memset(to, 0, sizeof to);
      copy(from, to, n, 2, &sink);
      EXPECT_EQ(std::memcmp(from, to, sizeof to), 0);
      EXPECT_EQ(sink, to[n - 1]);
    }
    l.stream_fill(from, to, n, 1, &sink);
    for (const float x : to) EXPECT_EQ(x, 1);
    std::memset(from, 0, sizeof from);
    l.read(from, nullptr, n, 1, &sink);
    EXPECT_EQ(sink, 0);
    const int32_t one = 1;
    std::memcpy(&from[896], &one, 4);  // the first lane of a group: the loop merges all bits that it read
    l.read(from, nullptr, n, 1, &sink);
    EXPECT_EQ(sink, 1);
  }
}

TEST(BenchLimits, PeakLoopsCountTheirOperations) {
  float sink = 0;
  if (cpu_runs(CpuTarget::avx2)) {
    EXPECT_EQ(avx2::fma_loop(10, &sink), 10 * 12 * 8 * 2);
    EXPECT_EQ(avx2::int8_loop(10, &sink), 10 * 8 * 32 * 2);
    EXPECT_EQ(sink, 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 10 * 8 * 4 * 9) << "four products of 3 and 3 a lane and round";
  }
  if (cpu_has_vnni()) {
    EXPECT_EQ(avx512::int8_loop(10, &sink), 10 * 12 * 64 * 2);
    EXPECT_EQ(sink, 66 + 10 * 12 * 4 * 9);
  }
  if (cpu_runs(CpuTarget::avx512_bf16)) {
    EXPECT_EQ(avx512::bf16_loop(1000, &sink), 1000 * 12 * 16 * 2 * 2);
    const float x = 0x1.06p-9f;  // bf16 0x3b03
    EXPECT_NEAR(sink, 66 + 1000 * 12 * 2 * x * x, 0.01);
  }
}

TEST(BenchLimits, AMeasurementIsComplete) {
  if (!cpu_runs(CpuTarget::avx2)) GTEST_SKIP() << "nibble bench needs AVX2 and says so on other CPUs (E503)";
  const CacheSizes caches = cache_sizes();
  const Limits l = measure_limits(2, caches, 0);
  EXPECT_EQ(l.threads, 2);
  for (const double x : {l.f32, l.int8, l.read, l.copy, l.stream_copy, l.stream_fill}) EXPECT_GT(x, 0);
  EXPECT_EQ(l.bf16 > 0, cpu_runs(CpuTarget::avx512_bf16));
  EXPECT_EQ(l.l1 > 0, caches.l1 > 0);
  EXPECT_EQ(l.l3 > 0, caches.l3 > 0);
}

TEST(BenchLimits, ThreadCounts) {
  EXPECT_EQ(thread_counts(1), (std::vector<int>{1}));
  EXPECT_EQ(thread_counts(2), (std::vector<int>{1, 2}));
  EXPECT_EQ(thread_counts(4), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(thread_counts(12), (std::vector<int>{1, 2, 3, 4, 8, 12}));
}

}  // namespace
}  // namespace nibble
