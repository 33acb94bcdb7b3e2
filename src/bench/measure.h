// How benchmarks measure. The limit of the machine is timed right before every repeat, and shares are medians of these
// pairs: on a shared machine both see the same weather.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/threads.h"

namespace nibble {

/// Seconds of a clock that never goes back.
double now();
/// 0 of nothing.
double median(std::vector<double> x);

/// What a Peak has to say of a whole run.
struct PeakSummary {
  std::string format, text;
  double flops = 0;
};

/// Multiply-adds a second of all threads together, in pieces of about 10 ms, for operands of a format: "f32", "bf16",
/// "int8", "4bit" (as int8), "8bit" (as bf16). A format without an instruction of its own is expanded to f32 and has
/// its peak. 0 on a CPU without FMA.
class Peak {
 public:
  explicit Peak(ThreadPool& pool, std::string_view format = "f32");
  bool has_own_loop() const { return own_; }
  /// Measures, remembers and returns operations a second; 0: unknown.
  double measure();
  double flops() const { return median(samples_); }
  const std::string& format() const { return format_; }
  PeakSummary summary() const;

 private:
  ThreadPool& pool_;
  int64_t (*loop_)(int64_t, float*) = nullptr;
  std::string format_;
  const char* name_ = "";
  bool own_ = true;
  std::vector<float> sinks_;
  std::vector<double> samples_;
};

/// Repeats of one piece of work, each beside the peak of its moment.
class Timing {
 public:
  void add(double seconds, double peak, double flops);
  size_t count() const { return seconds_.size(); }
  double seconds() const { return median(seconds_); }
  double fastest() const;
  bool has_share() const { return !shares_.empty(); }
  /// Median of work / seconds / peak.
  double share() const { return median(shares_); }
  const std::vector<double>& shares() const { return shares_; }
  /// "88.0 %", or "-".
  std::string share_text() const;

 private:
  std::vector<double> seconds_, shares_;
};

}  // namespace nibble
