// The regression guard: this run against one that was saved. Both hold, for each repeat of each row, the share of the
// machine's limit that was timed right beside it, so that most of the weather of a shared machine divides out; what
// is left is judged by a bootstrap of the ratio of medians.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace nibble {

struct Interval {
  double low = 0, high = 0;
};

/// Bootstrap interval (percentiles of 4000 resamples of both samples) of median(now) / median(before), at 99 %: a run
/// compares about ten rows, and one in a thousand may cry wolf for all of them. The same for the same samples.
/// At least one value in each, all positive.
Interval ratio_interval(std::span<const double> before, std::span<const double> now);

enum class Verdict { slower, same, faster, unclear };
std::string_view name_of(Verdict v);

/// slower: the whole interval lies below 1 - tolerance; faster: above 1 + tolerance; same: between them; else unclear.
Verdict verdict_of(const Interval& ratio, double tolerance);

/// What --save writes, and --compare reads: schema "nibble-bench-1", what the run was of, and every share.
std::string saved_bench(const BenchResult& result);

/// Compares with the text of a saved file: adds a table to result.text and "comparison" to result.json. Returns whether
/// no row is slower. `name` is the file's, for messages.
/// Errors: E309 not such a file; E117 of another CPU, benchmark or configuration, or without a row in common.
bool compare_bench(BenchResult& result, std::string_view saved, const std::string& name, double tolerance);

}  // namespace nibble
