// Measures what `nibble plan` needs to price a training step on this machine: its limits, and every op of real training
// steps of several shapes.  Source: spec/plan.md 8.
#pragma once
#include <span>

#include "bench/bench.h"
#include "plan/machine.h"

namespace nibble {

/// A model and the tokens of its step.
struct TrainingShape {
  int64_t width, hidden, heads, kv_heads, head_size, vocab, layers;
  int64_t length, rows;
};
struct CalibrationShapes {
  std::span<const TrainingShape> measured, checked;
};
/// From models that fit the caches to rows of weights that do not, short and long sequences, few and many tokens; and
/// three others.
extern const CalibrationShapes calibration_shapes;

/// For every thread count, float32 and bfloat16, without a recipe and with each of `recipes`: limits, prices, and three
/// trainings that are no part of the prices, predicted and timed. About `seconds` of measuring for each. All goes into
/// `machine`.
BenchResult calibrate(Machine& machine, const std::vector<int>& threads, const std::string& target,
                      const std::vector<std::string>& recipes, double seconds,
                      const CalibrationShapes& shapes = calibration_shapes);

}  // namespace nibble
