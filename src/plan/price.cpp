#include "plan/price.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/quant_spec.h"

namespace nibble {
namespace {

constexpr int features = 5;  // fixed, flop, byte, far byte, function
using Row = std::array<double, features>;

Row features_of(const PriceSample& s) {
  return {1, s.work.flops, s.work.bytes(), s.far_share * s.work.bytes(), s.work.functions};
}

// Solves the normal equations of the chosen columns by elimination; false if they are singular.
bool solve(std::array<Row, features> a, Row b, unsigned chosen, Row& x) {
  x = {};
  std::vector<int> columns;
  for (int i = 0; i < features; ++i)
    if ((chosen >> i & 1) != 0) columns.push_back(i);
  const auto at = [&](int r, int c) -> double& { return a[static_cast<size_t>(r)][static_cast<size_t>(c)]; };
  for (size_t i = 0; i < columns.size(); ++i) {
    const int p = columns[i];
    if (at(p, p) <= 1e-12) return false;
    for (size_t k = i + 1; k < columns.size(); ++k) {
      const int r = columns[k];
      const double factor = at(r, p) / at(p, p);
      for (const int c : columns) at(r, c) -= factor * at(p, c);
      b[static_cast<size_t>(r)] -= factor * b[static_cast<size_t>(p)];
    }
  }
  for (size_t i = columns.size(); i-- > 0;) {
    const int p = columns[i];
    double sum = b[static_cast<size_t>(p)];
    for (size_t k = i + 1; k < columns.size(); ++k) sum -= at(p, columns[k]) * x[static_cast<size_t>(columns[k])];
    x[static_cast<size_t>(p)] = sum / at(p, p);
  }
  return std::ranges::all_of(x, [](double v) { return v >= 0 && std::isfinite(v); });
}

// Without the numbers of its random streams, which cost nothing.
std::string spec_name(const Attrs& attrs, std::string_view which) {
  if (!attrs.has(which)) return "-";
  QuantSpec spec = parse_quant_spec(attrs.get_string(which));
  spec.stream = spec.sign_stream = 0;
  return to_string(spec);
}

}  // namespace

std::string priced_name(const Graph& graph, const Node& n) {
  std::string name(n.op->name);
  if (n.attrs.has("row") || n.attrs.has("column"))
    return fmt::format("{} {} | {}", name, spec_name(n.attrs, "row"), spec_name(n.attrs, "column"));
  for (size_t i = 0; i < std::min<size_t>(n.in.size(), 2); ++i)
    if (const DType dtype = graph.type(n.in[i]).dtype; is_quantized(dtype)) name += fmt::format(" {}", name_of(dtype));
  return name;
}

OpPrice fit_price(std::span<const PriceSample> samples) {
  // Columns divided by their largest relative value, so that the equations are of one size.
  Row scale{};
  for (const PriceSample& s : samples)
    for (size_t i = 0; i < features; ++i) scale[i] = std::max(scale[i], features_of(s)[i] / s.seconds);
  std::array<Row, features> a{};
  Row b{};
  double weights = 0;
  for (const PriceSample& s : samples) {
    Row x = features_of(s);
    for (size_t i = 0; i < features; ++i) x[i] = scale[i] > 0 ? x[i] / s.seconds / scale[i] : 0;
    for (size_t i = 0; i < features; ++i) {
      b[i] += s.weight * x[i];
      for (size_t k = 0; k < features; ++k) a[i][k] += s.weight * x[i] * x[k];
    }
    weights += s.weight;
  }
  Row best{};
  double best_error = weights;  // that of predicting nothing
  for (unsigned chosen = 1; chosen < 1u << features; ++chosen) {
    Row x;
    if (!solve(a, b, chosen, x)) continue;
    double error = weights;  // sum w (x . f - 1)^2, expanded
    for (size_t i = 0; i < features; ++i) {
      error -= 2 * b[i] * x[i];
      for (size_t k = 0; k < features; ++k) error += a[i][k] * x[i] * x[k];
    }
    if (error < best_error) best = x, best_error = error;
  }
  for (size_t i = 0; i < features; ++i) best[i] = scale[i] > 0 ? best[i] / scale[i] : 0;
  OpPrice p{.fixed = best[0], .flop = best[1], .byte = best[2], .far_byte = best[3], .function = best[4]};
  for (const PriceSample& s : samples)
    p.error += s.weight / weights * std::abs(p.seconds(s.work, s.far_share) / s.seconds - 1);
  p.samples = static_cast<int>(samples.size());
  return p;
}

double far_share(const ProgramPlan& plan, const CacheSizes& caches) {
  const auto arena = static_cast<double>(plan.arena_bytes()), cache = static_cast<double>(caches.l3);
  return arena > cache ? 1 - cache / arena : 0;
}

Work outside_work(const ProgramPlan& plan, int64_t accumulation, bool finish) {
  Work w;
  for (const ExecutablePlan& e : plan.executables) {
    const auto runs = static_cast<double>(runs_a_step(e.name, accumulation, finish));
    for (const KernelChoice& k : e.kernels)
      if (k.run != nullptr) w.flops += runs;
    for (const Node& n : e.graph.nodes)
      if (n.op == &input_op) w.written += runs * static_cast<double>(e.graph.type(n.out[0]).nbytes());
  }
  return w;
}

std::optional<StepForecast> forecast_step(const ProgramPlan& plan, int64_t accumulation, const Machine& machine,
                                          bool finish) {
  const Limits* limits = machine.limits_of(plan.threads);
  if (limits == nullptr ||
      std::ranges::none_of(machine.prices, [&](const OpPrice& p) { return p.threads == plan.threads; }))
    return std::nullopt;
  StepForecast f;
  std::map<std::string, double> parts;
  const double far = far_share(plan, machine.caches);
  for (const ExecutablePlan& e : plan.executables) {
    const auto runs = static_cast<double>(runs_a_step(e.name, accumulation, finish));
    if (runs == 0) continue;
    for (size_t i = 0; i < e.graph.nodes.size(); ++i) {
      if (e.kernels[i].run == nullptr) continue;
      const Node& n = e.graph.nodes[i];
      const Work work = work_of(e.graph, n);
      const OpPrice* price = machine.price_of(priced_name(e.graph, n), e.kernels[i].name, work.format, plan.threads);
      std::string name(n.op->name);
      if (price == nullptr && std::ranges::find(f.by_limit, name) == f.by_limit.end()) f.by_limit.push_back(name);
      const double seconds =
          price != nullptr ? price->seconds(work, far) : limit_seconds(work, *limits, machine.caches);
      parts[std::move(name)] += runs * seconds;
    }
  }
  if (const OpPrice* price = machine.price_of(outside_kernels, "", "", plan.threads))
    parts[std::string(outside_kernels)] += price->seconds(outside_work(plan, accumulation, finish), far);
  f.parts.assign(parts.begin(), parts.end());
  std::ranges::stable_sort(f.parts, std::greater{}, [](const auto& part) { return part.second; });
  for (const auto& [name, seconds] : f.parts) f.seconds += seconds;
  const std::string_view format = step_format(plan);
  double worst = 0;
  for (const Check& c : machine.checks)
    if (c.threads == plan.threads && c.format == format)
      worst = std::max(worst, std::abs(c.predicted / c.measured - 1));
  if (worst > 0) f.range = worst;
  return f;
}

std::string forecast_text(const std::optional<StepForecast>& forecast, const Machine& machine, int threads,
                          int64_t tokens, double model_flops, const std::string& file) {
  if (!forecast)
    return fmt::format("\ntime     unknown: {} has no prices for {} thread{}; `nibble bench --calibrate` makes them\n",
                       file, threads, threads == 1 ? "" : "s");
  const StepForecast& f = *forecast;
  std::string text = fmt::format(
      "\ntime     {:.4g} s a step +-{:.0f} %: {:.0f} tokens/s, {:.4g} TFLOP/s by MaxText's formula\n"
      "         {}, {} thread{}, measured {} by nibble {}\n",
      f.seconds, 100 * f.range, static_cast<double>(tokens) / f.seconds, model_flops / f.seconds / 1e12, machine.cpu,
      threads, threads == 1 ? "" : "s", machine.date, machine.version);
  for (const auto& [name, seconds] : f.parts)
    text += fmt::format("  {:<26}{:>12.3f} ms{:>8.1f} %\n", name, 1e3 * seconds, 100 * seconds / f.seconds);
  if (!f.by_limit.empty())
    text += fmt::format("  not measured, taken at the machine's limits: {} (`nibble bench --calibrate quantization=...`)\n",
                        fmt::join(f.by_limit, ", "));
  return text;
}

nlohmann::ordered_json forecast_json(const std::optional<StepForecast>& forecast, const Machine& machine) {
  if (!forecast) return nullptr;
  nlohmann::ordered_json j = {{"step_seconds", forecast->seconds},
                              {"range", forecast->range},
                              {"cpu", machine.cpu},
                              {"measured", machine.date},
                              {"measured_by", machine.version}};
  for (const auto& [name, seconds] : forecast->parts) j["parts"][name] = seconds;
  j["by_limit"] = forecast->by_limit;
  return j;
}

}  // namespace nibble
