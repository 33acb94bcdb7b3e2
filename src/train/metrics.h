// What a run says about itself: MaxText's step and evaluation lines, byte for byte, and metrics.jsonl
// (spec/training.md 5.1, 5.2).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"

namespace nibble {

/// Numbers of one completed step. Times are the only fields that differ between equal runs.
struct StepRecord {
  int64_t step = 0, updates = 0, skipped_total = 0, tokens = 0, samples = 0, epoch = 0, targets = 0;
  double loss = 0, ce = 0, z_loss = 0;
  double grad_norm = 0, raw_grad_norm = 0, param_norm = 0, lr = 0, padding_share = 0;
  uint64_t batch_hash = 0;
  bool skipped = false;
  double seconds = 0, data_wait_seconds = 0;
  double flops = 0;         // of the step, by MaxText's formula
  int64_t step_tokens = 0;  // B T GA, padding included
  double peak_flops = 0;    // of the device; 0: unknown
  int64_t memory_peak_bytes = 0;
  double eta_seconds = 0;
};

struct EvaluationRecord {
  int64_t after_step = 0;  // completed steps
  double loss = 0, z_loss = 0, bits_per_byte = 0, seconds = 0;
  int64_t targets = 0;
};

/// "completed step: 7, seconds: 0.512, ..., perplexity: 3371.223" and, with `extra`, ", grad_norm: ..., eta: 1h02m".
std::string step_line(const StepRecord& r, bool extra);
/// "Completed eval step: 0, seconds: 0.101, running loss=3.210, ..."
std::string running_evaluation_line(int64_t batch, double seconds, double loss, int64_t targets);
/// "Completed eval after train step 100, loss=3.210, perplexity=24.779, total_weights=65536.0, avg_z_loss=0.000"
std::string evaluation_line(const EvaluationRecord& r);
/// 1h02m, 3m20s, 12s.
std::string duration(double seconds);
/// 61.2GiB, 918.7MiB.
std::string bytes_text(int64_t bytes);

/// Appends records to metrics.jsonl, one write each. A failed write is warned of once a minute (E804), never fatal.
class MetricsLog {
 public:
  /// Opens for appending; a last line that a kill cut short is removed. `copy`: another file that gets the same lines.
  MetricsLog(const std::filesystem::path& file, const std::filesystem::path& copy, std::string run_name);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  void step(const StepRecord& r);
  void evaluation(const EvaluationRecord& r);
  /// Names: start, resume, save, save_failed, signal, nonfinite, spike, warning, stop.
  void event(int64_t step, std::string_view name, std::string_view detail);
  /// Quantiser statistics: of one copy, with "site" and "copy", or of the step. docs/quantization.md lists the keys.
  void numerics(int64_t step, const Json& values);

 private:
  Json record(std::string_view kind, int64_t step) const;
  void write(const Json& json);
  std::string run_name_;
  std::vector<int> files_;
  double last_warning_ = -1e9;
};

}  // namespace nibble
