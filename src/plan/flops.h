// Model FLOPs of a training step, the published convention: what TFLOP/s and MFU are computed from. Not what the
// machine executes (that is the sum of Op::cost over the graph, plan/report.h).  Source: spec/training.md 5.4,
// MaxText's calculate_tflops_training_per_device.
#pragma once
#include <cstdint>

#include "models/llama.h"

namespace nibble {

/// Floating-point operations of one optimizer step on one device; a multiply-add counts as two.
struct StepFlops {
  double weights = 0;    // products with weights, the head included, the embedding lookup not
  double attention = 0;  // scores and their product with v, half of the square for the causal mask
  double total() const { return weights + attention; }
};

/// batch B rows of length T, GA microbatches. Forward counts once, backward twice; recomputation not at all.
StepFlops maxtext_flops(const LlamaConfig& c, int64_t batch, int64_t length, int64_t accumulation);

}  // namespace nibble
