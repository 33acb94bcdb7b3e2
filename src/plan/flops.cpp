#include "plan/flops.h"

#include <algorithm>

namespace nibble {

// In double: a step of llama3.1-405b passes the 64-bit integers with accumulation, and six digits are enough.
StepFlops maxtext_flops(const LlamaConfig& c, int64_t batch, int64_t length, int64_t accumulation) {
  const auto E = static_cast<double>(c.width), F = static_cast<double>(c.hidden), D = static_cast<double>(c.head_size);
  const auto H = static_cast<double>(c.heads), K = static_cast<double>(c.kv_heads), T = static_cast<double>(length);
  const double tokens = static_cast<double>(batch) * T, layers = static_cast<double>(c.layers);
  const double mlp = 3 * 2 * tokens * E * F;  // gate, up, down
  const double projections = 2 * tokens * E * (H + 2 * K) * D + 2 * tokens * E * H * D;
  const double head = 2 * tokens * E * static_cast<double>(c.vocab);
  const double w = c.window == 0 ? T : std::min(static_cast<double>(c.window), T);
  const double scores = 4 * tokens * (w - w * w / (2 * T)) * H * D;  // without a window: half of 4 B T^2 H D
  const double passes = 3 * static_cast<double>(accumulation);
  return {.weights = passes * (layers * (mlp + projections) + head), .attention = passes * layers * scores};
}

}  // namespace nibble
