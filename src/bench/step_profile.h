// Where the time of a training step goes: every node's, from profiled steps on synthetic tokens. `nibble profile`, the
// table of `bench train` and the prices of `bench --calibrate` are made from it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/work.h"
#include "train/step.h"

namespace nibble {

/// Rows of tokens drawn uniformly, one segment each, as dataset_type=synthetic has them.
class SyntheticRows {
 public:
  SyntheticRows(int64_t rows, int64_t length, int64_t vocab);
  Rows view() const;

 private:
  std::vector<int32_t> inputs_, targets_, segments_, positions_;
  std::vector<float> weights_;
  int64_t rows_;
};

/// A node, or several of one group: times and work are sums over one step.
struct ProfileRow {
  std::string op, site, kernel, format;  // site: a label, "layers.0-7/mlp/up_proj"; empty where rows are by op
  int64_t nodes = 0;                     // runs in a step: microbatches count
  double seconds = 0, limit = 0;         // limit: what the machine's limits allow; 0 unknown
  double flops = 0, bytes = 0;
};

struct StepProfile {
  double start = 0, seconds = 0;  // of the step, by the steady clock
  struct Event {
    const ExecutablePlan* plan;
    Span span;
  };
  std::vector<Event> events;  // in order of execution
  double kernel_seconds() const;
  double outside_seconds() const { return seconds - kernel_seconds(); }
};

/// Runs optimizer steps on the same rows with profiling on: at least `least`, then until `seconds` have passed, at most
/// `most`. `finite` becomes false if a step was not.
std::vector<StepProfile> profile_steps(Stepper& stepper, const Rows& rows, int least, int most, double seconds,
                                       bool* finite);
/// The faster half of the steps, at least one: a neighbour's visit is left out, and times still add up.
std::vector<StepProfile> faster_half(std::vector<StepProfile> profiles);
/// The one that took the least time.
const StepProfile& fastest(const std::vector<StepProfile>& profiles);

enum class Grouping { op, site, node };
/// Rows of a profile, the longest first; by node: in order of execution.
std::vector<ProfileRow> profile_rows(const StepProfile& profile, Grouping grouping, const Limits& limits,
                                     const CacheSizes& caches);

/// The rows, "outside the kernels", and their sum, which is the step.
std::string profile_text(const StepProfile& profile, const std::vector<ProfileRow>& rows);
nlohmann::ordered_json profile_json(const std::vector<ProfileRow>& rows);

/// A trace for chrome://tracing or ui.perfetto.dev: an array of complete events, times in microseconds from the start
/// of the step. One track for the step and its executables, one for the kernels.
std::string trace_text(const StepProfile& profile, const Limits& limits, const CacheSizes& caches);

}  // namespace nibble
