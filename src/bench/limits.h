// Measures the machine's own limits: peaks of multiply-adds by format, bytes a second from each cache and from memory.
#pragma once
#include "bench/bench.h"
#include "bench/measure.h"
#include "plan/machine.h"

namespace nibble {

/// The fastest of repeats that take about `seconds` in all; every probe gets at least three.
Limits measure_limits(int threads, const CacheSizes& caches, double seconds);

/// `machine`'s limits of so many threads, or a short measurement of them where it has none.
Limits limits_for(const Machine& machine, int threads);

/// The same as this run sees them: peaks scaled by what `peak` reached in it, bandwidths as they were.
Limits limits_now(const Machine& machine, int threads, const Peak& peak);

/// 1, 2, 3, 4, then powers of two, and n itself.
std::vector<int> thread_counts(int n);

/// Measures the limits of every thread count into `machine`, about `seconds` each. The result shows all it holds.
BenchResult bench_limits(Machine& machine, const std::vector<int>& threads, double seconds);
/// Now, as a machine file says it: "2026-01-31 12:00 UTC".
std::string utc_text();

}  // namespace nibble
