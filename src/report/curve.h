// The loss curve of a run: reads metrics.jsonl and draws one self-contained SVG, readable in light and dark.
// Source: spec/training.md 5.2 (names and meaning of the fields).
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

/// What the curve and the summary need of metrics.jsonl. Losses are in nats per target; a loss that was not finite
/// is absent here and counted. Of several records of one step (a run that was stopped and resumed) the last counts.
struct RunMetrics {
  std::string run_name;
  std::map<int64_t, double> train;              // learning/loss by step
  std::map<int64_t, double> eval;               // eval/avg_loss by step
  std::map<int64_t, double> tokens_per_second;  // perf/per_device_tokens_per_sec by step
  int64_t not_finite = 0;                       // train and eval losses "nan" or "inf"
  int64_t unreadable_lines = 0;                 // a killed run may leave half a line behind

  std::optional<double> first_loss() const, last_loss() const;
  /// Mean of the last `steps` losses: less noisy than the last one alone.
  std::optional<double> recent_loss(size_t steps = 20) const;
  /// Lowest evaluation loss and its step (the first of equals).
  std::optional<std::pair<int64_t, double>> best_eval() const;
  std::optional<double> median_tokens_per_second() const;
};

/// Reads <run>/metrics.jsonl.  Errors: E204 if the folder has none, E203 if it holds no loss.
RunMetrics read_run_metrics(const std::filesystem::path& run);

/// The curve as an SVG document: training loss (light), its moving mean, evaluation points, axes with ticks, legend.
/// The second line of the title gives the final values. Needs at least one training or evaluation loss.
///
///   title  first line, for instance "quickstart: nibble-1m"; any text, escaped here
std::string loss_curve_svg(const RunMetrics& metrics, const std::string& title);

/// Ascending round numbers (1, 2 or 5 times a power of ten apart) inside [low, high], about `count` of them.
std::vector<double> round_ticks(double low, double high, int count);

/// Centred moving mean over 2 half + 1 values, fewer at the ends.
std::vector<double> moving_mean(const std::vector<double>& values, size_t half);

}  // namespace nibble
