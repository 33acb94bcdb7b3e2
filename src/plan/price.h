// What a training step takes on a measured machine, node by node.  Source: spec/plan.md 6 and 8.
// An op's time is a linear function of its work: a fixed part a call, seconds per operation, per byte, per byte that
// comes from memory because the program does not fit the last cache, and per exponential. The coefficients are fitted
// to the nodes of real training steps of many shapes (bench/calibrate), so packing, edges of tiles and waiting for
// threads are in them.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "plan/machine.h"
#include "plan/work.h"
#include "runtime/program.h"

namespace nibble {

/// A measured node.
struct PriceSample {
  Work work;
  double far_share = 0, seconds = 0;
  double weight = 1;  // how much its relative error counts
};
/// The non-negative coefficients with the least weighted sum of squared relative errors. Op, kernel, format and threads
/// are left to the caller.
OpPrice fit_price(std::span<const PriceSample> samples);

/// The name under which a node is priced: its op; where it quantises, how; where it multiplies quantised operands, their
/// types. "quantize nvfp4 | nvfp4 stochastic hadamard=16", "qlinear nvfp4 nvfp4_2d"
std::string priced_name(const Graph& graph, const Node& node);

/// The share of a program's bytes that cannot stay in the last cache from one step to the next.
double far_share(const ProgramPlan& plan, const CacheSizes& caches);

/// The name under which the time between kernels is priced, and what it depends on: flops are the nodes of a step,
/// bytes written the inputs of its executables.
inline constexpr std::string_view outside_kernels = "outside the kernels";
Work outside_work(const ProgramPlan& plan, int64_t accumulation, bool finish = false);

struct StepForecast {
  double seconds = 0;
  std::vector<std::pair<std::string, double>> parts;  // by op, the longest first
  std::vector<std::string> by_limit;                  // ops without a price: taken at the machine's limits
  double range = 0.1;                                 // of the checks: relative
};
/// Nothing if the machine has no prices for so many threads. finish: of a step of the end of the run (plan/work.h).
std::optional<StepForecast> forecast_step(const ProgramPlan& plan, int64_t accumulation, const Machine& machine,
                                          bool finish = false);

/// What `nibble plan` says of the time: parts, tokens a second, range, machine. Without a forecast one line that says
/// what to run; `file` is where the machine's file is or would be.
std::string forecast_text(const std::optional<StepForecast>& forecast, const Machine& machine, int threads,
                          int64_t tokens, double model_flops, const std::string& file);

/// seconds, range, parts, machine; null without a forecast.
nlohmann::ordered_json forecast_json(const std::optional<StepForecast>& forecast, const Machine& machine);

}  // namespace nibble
