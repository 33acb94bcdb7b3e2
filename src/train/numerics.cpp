#include "train/numerics.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "ops/ops.h"
#include "passes/recompute.h"
#include "runtime/quantizer_statistics.h"

namespace nibble {
namespace {

bool is_quantizer(const Node& n) {
  return n.op == &quantize_op || n.op == &requantize_op || n.op == &quantize_weight_op || n.op == &quantize_weights_op;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The latest amax as a multiple of the median of those before; 0: there are none.
double jump(const std::deque<double>& before, double amax) {
  if (before.empty()) return 0;
  std::vector<double> sorted(before.begin(), before.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle > 0 ? amax / *middle : 0;
}

}  // namespace

std::vector<std::string> ZeroGradients::step(const Program& program, const std::vector<Parameter>& parameters) {
  std::set<std::string> now;
  std::vector<std::string> twice;
  for (const Parameter& p : parameters) {
    const Tensor g = program.state(StateRole::gradient, p.name);
    const float* const v = g.as<float>();
    if (!std::all_of(v, v + g.numel(), [](float x) { return x == 0; })) continue;
    now.insert(p.name);
    if (before_.contains(p.name)) twice.push_back(p.name);
  }
  before_ = std::move(now);
  return twice;
}

bool Spikes::step(double loss) {
  ++steps_;
  if (!std::isfinite(loss)) return ++spikes_, true;
  if (counted_ >= 20 && loss > mean_ + 7 * std::sqrt(squares_ / static_cast<double>(counted_ - 1)))
    return ++spikes_, true;
  const double off = loss - mean_;
  mean_ += off / static_cast<double>(++counted_);
  squares_ += off * (loss - mean_);
  return false;
}

void Numerics::before(int64_t step) {
  step_ = step;
  if (step % period_ != 0) return;
  seen_.clear();
  for (const char* name : {"recast", "microbatch", "recast_finish", "microbatch_finish"})
    if (stepper_.program().has_executable(name)) stepper_.program().executable(name).observe(this);
}

void Numerics::stop() {
  for (const char* name : {"recast", "microbatch", "recast_finish", "microbatch_finish"})
    if (stepper_.program().has_executable(name)) stepper_.program().executable(name).observe(nullptr);
}

std::vector<std::string> Numerics::after(int64_t step, double loss) {
  const double start = seconds_now();
  stop();
  std::vector<std::string> warnings;
  const std::vector<std::string> zero = zero_.step(stepper_.program(), stepper_.parameters());
  for (const std::string& name : zero)
    warnings.push_back(fmt::format("step {}: the gradient of {} is exactly 0, as in the step before", step, name));
  if (spikes_.step(loss)) warnings.push_back(fmt::format("step {}: loss {} is a spike", step, loss));
  if (step % period_ == 0)
    log_.numerics(step, {{"zero_grad", static_cast<int64_t>(zero.size())}, {"spike_share", spikes_.share()}});
  seconds_ += seconds_now() - start;
  return warnings;
}

// Of several microbatches the first counts; what the backward pass makes again is the same copy.
void Numerics::after(const Node& node, std::span<const Tensor> in, std::span<const Tensor> out) {
  if (!is_quantizer(node) || is_recomputed(node)) return;
  const double start = seconds_now();
  int k = 0;
  if (node.attrs.has("row")) copy(node, k, false, in, out[static_cast<size_t>(k)]), ++k;
  if (node.attrs.has("column")) copy(node, k, true, in, out[static_cast<size_t>(k)]);
  seconds_ += seconds_now() - start;
}

void Numerics::copy(const Node& node, int output, bool column, std::span<const Tensor> in, const Tensor& made) {
  const QuantizedCopy name = copy_of(node, output, stepper_.sites());
  if (!seen_.insert({name.site, name.copy}).second) return;
  const QuantizerStatistics s = quantizer_statistics(node.attrs, column, in, made);
  std::deque<double>& past = amaxes_[{name.site, name.copy}];
  const double amax_jump = jump(past, s.amax);
  past.push_back(s.amax);
  if (past.size() > 1024) past.pop_front();
  const BlockFormat format = block_format(made.type.dtype);
  Json j;
  j["site"] = name.site, j["copy"] = name.copy;
  j["format"] = node.attrs.get_string(column ? "column" : "row"), j["elements"] = s.elements;
  const std::pair<const char*, double> numbers[] = {{"sqnr_db", s.sqnr_db},
                                                    {"shrink", s.shrink},
                                                    {"zero_share", s.zero_share},
                                                    {"at_max_share", s.at_max_share},
                                                    {"clip_share", s.clip_share},
                                                    {"dyn_range", s.dyn_range},
                                                    {"amax", s.amax},
                                                    {"amax_jump", amax_jump},
                                                    {"crest", s.crest},
                                                    {"kurtosis", s.kurtosis},
                                                    {"top_channel_share", s.top_channel_share},
                                                    {"mean_ratio", s.mean_ratio}};
  for (const auto& [key, value] : numbers)
    j[key] = std::isfinite(value) ? Json(value) : Json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  if (format.scales) {
    j["scale_zero"] = s.scale_zero, j["scale_subnormal"] = s.scale_subnormal, j["scale_max"] = s.scale_max;
    j["scale_hist"] = s.scale_hist, j["scale_hist_last"] = s.scale_hist_last;
  }
  if (format.bits == 4) j["code_hist"] = s.code_hist;
  if (j["format"].get<std::string>().find("four_six") != std::string::npos) j["four_share"] = s.four_share;
  log_.numerics(step_, j);
}

}  // namespace nibble
