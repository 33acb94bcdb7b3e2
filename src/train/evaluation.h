// Held-out loss: sum over the set divided by its count, so it is the same for any batch size (spec/training.md 4.5).
#pragma once
#include <functional>
#include <string_view>

#include "data/loader.h"
#include "train/metrics.h"
#include "train/step.h"

namespace nibble {

/// At most `batches` batches (-1: all), in fixed order. `line` gets MaxText's running lines.
EvaluationRecord evaluate(Stepper& stepper, BatchSource& source, Batch& batch, int64_t batches, int64_t after_step,
                          const std::function<void(std::string_view)>& line);

}  // namespace nibble
