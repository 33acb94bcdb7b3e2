// Statistics of the quantisers of a run (numerics_period): looks on while a step runs, changes no bit of it, and writes
// records of kind "numerics" to metrics.jsonl.  Source: spec/precision.md 7.1, 7.3; in use: docs/quantization.md.
#pragma once
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/program.h"
#include "train/metrics.h"
#include "train/step.h"

namespace nibble {

/// Parameters whose gradient is exactly 0 in this step and was in the one before.
class ZeroGradients {
 public:
  /// After the backward pass of every step. Reads up to the first element that is not 0.
  std::vector<std::string> step(const Program& program, const std::vector<Parameter>& parameters);

 private:
  std::set<std::string> before_;
};

/// Steps with a loss above running mean + 7 standard deviations of the steps before.
class Spikes {
 public:
  /// True for a spike, which then does not count for the mean. The first 20 steps only count.
  bool step(double loss);
  double share() const { return steps_ > 0 ? static_cast<double>(spikes_) / static_cast<double>(steps_) : 0; }

 private:
  int64_t steps_ = 0, spikes_ = 0, counted_ = 0;
  double mean_ = 0, squares_ = 0;
};

class Numerics : private Observer {
 public:
  /// Of every period-th step, the first with step 0.
  Numerics(Stepper& stepper, MetricsLog& log, int64_t period) : stepper_(stepper), log_(log), period_(period) {}
  /// Around Stepper::run.
  void before(int64_t step);
  /// Returns warnings for the console: gradients that are exactly 0.
  std::vector<std::string> after(int64_t step, double loss);
  /// When the run ends with an error between the two.
  void stop();
  double seconds() const { return seconds_; }  // spent on statistics so far

 private:
  void after(const Node& node, std::span<const Tensor> in, std::span<const Tensor> out) override;
  void copy(const Node& node, int output, bool column, std::span<const Tensor> in, const Tensor& made);

  Stepper& stepper_;
  MetricsLog& log_;
  int64_t period_, step_ = 0;
  double seconds_ = 0;
  std::set<std::pair<std::string, std::string>> seen_;                        // in this step
  std::map<std::pair<std::string, std::string>, std::deque<double>> amaxes_;  // the last 1,024 records
  ZeroGradients zero_;
  Spikes spikes_;
};

}  // namespace nibble
