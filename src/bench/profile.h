// One training step taken apart, for `nibble profile`.
#pragma once
#include "bench/bench.h"
#include "bench/step_profile.h"

namespace nibble {

struct ProfileResult {
  BenchResult result;
  std::string trace;  // of the step that the table shows
};

/// Runs up to options.repeats profiled steps after one that warms up, and shows the fastest.
ProfileResult profile_training(const Config& config, ProgramPlan plan, const BenchOptions& options, Grouping grouping);

}  // namespace nibble
