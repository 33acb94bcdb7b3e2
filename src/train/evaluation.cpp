#include "train/evaluation.h"

#include <chrono>

namespace nibble {

EvaluationRecord evaluate(Stepper& stepper, BatchSource& source, Batch& batch, int64_t batches, int64_t after_step,
                          const std::function<void(std::string_view)>& line) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  LossSum total;
  int64_t bytes = 0;
  for (int64_t i = 0; i * batch.rows < source.rows() && (batches < 0 || i < batches); ++i) {
    const Clock::time_point batch_start = Clock::now();
    source.fill(batch, i * batch.rows);
    const LossSum sum = stepper.evaluate({batch.inputs.data(), batch.targets.data(), batch.segments.data(),
                                          batch.positions.data(), batch.weights.data(), batch.rows},
                                         i > 0);
    total.ce += sum.ce, total.z += sum.z, total.targets += sum.targets, bytes += batch.target_bytes;
    line(running_evaluation_line(i, seconds(batch_start), total.loss(), total.targets));
  }
  constexpr double ln2 = 0.69314718055994530942;
  EvaluationRecord r{after_step, total.loss(),   total.z / static_cast<double>(total.targets),
                     0,          seconds(start), total.targets};
  if (bytes > 0) r.bits_per_byte = total.ce / (ln2 * static_cast<double>(bytes));
  return r;
}

}  // namespace nibble
