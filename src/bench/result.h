// What every benchmark's result begins with.
#pragma once
#include "bench/bench.h"
#include "bench/measure.h"

namespace nibble {

/// Program, CPU, threads, model and the peak measured in this run.
BenchResult begin_result(const char* what, const Config& config, const ProgramPlan& plan, const PeakSummary& peak);

}  // namespace nibble
