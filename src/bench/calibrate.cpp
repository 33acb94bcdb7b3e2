#include "bench/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "bench/limits.h"
#include "bench/step_profile.h"
#include "core/error.h"
#include "plan/price.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// clang-format off
constexpr TrainingShape measured_shapes[] = {
    {128,  384,  4, 2, 32,  1024, 2,   64,  4},
    {128,  384,  4, 2, 32,  1024, 2,  256, 16},
    {256,  768,  4, 2, 64,  4096, 2,  256,  4},
    {512, 1536,  8, 4, 64,  8192, 2,  512,  4},
    {512, 1536,  8, 4, 64,  8192, 1, 2048,  1},
    {768, 2048, 12, 4, 64, 16384, 1,  128,  4},
    {256,  768,  8, 8, 32,  1024, 1, 4096,  1}};
constexpr TrainingShape checked_shapes[] = {
    {128,  384,  4, 2, 32,  1024, 4,  128,  4},
    {320,  960,  5, 5, 64,  4096, 4,  256,  8},
    {512, 1536,  8, 4, 64,  8192, 4,  384,  2}};
// clang-format on

std::string text_of(const TrainingShape& s) {
  return fmt::format("width {}, {} layers, vocabulary {}, {} x {} tokens", s.width, s.layers, s.vocab, s.rows,
                     s.length);
}

// What a training computes in; an empty recipe quantises nothing.
struct Precision {
  std::string dtype, recipe;
};

Config config_of(const TrainingShape& s, const std::string& target, const Precision& precision) {
  std::vector<std::string> words = {"model_name=nibble-1m", "override_model_config=true", "cpu_target=" + target,
                                    "dtype=" + precision.dtype, "quantization=" + precision.recipe};
  const auto add = [&](const char* key, int64_t value) { words.push_back(fmt::format("{}={}", key, value)); };
  add("base_emb_dim", s.width), add("base_mlp_dim", s.hidden), add("base_num_query_heads", s.heads);
  add("base_num_kv_heads", s.kv_heads), add("head_dim", s.head_size), add("vocab_size", s.vocab);
  add("base_num_decoder_layers", s.layers), add("max_target_length", s.length);
  add("per_device_batch_size", s.rows);
  return resolve(words, {.command = "bench"}).config;
}

std::vector<Precision> precisions(const std::vector<std::string>& recipes) {
  std::vector<Precision> list;
  for (const char* dtype : {"float32", "bfloat16"}) {
    list.push_back({dtype, ""});
    for (const std::string& recipe : recipes) list.push_back({dtype, recipe});
  }
  return list;
}

class Training {
 public:
  Training(const TrainingShape& s, int threads, const std::string& target, const Precision& precision)
      : config_(step_of(config_of(s, target, precision))),
        rows_(s.rows, s.length, s.vocab),
        stepper_(config_, plan_training(config_, threads, resolve_target(target))) {
    initialize_parameters(stepper_.program(), stepper_.parameters(), 0);
    stepper_.run(rows_.view(), 1e-3, 1);  // touches the memory
  }
  const ProgramPlan& plan() { return stepper_.program().plan(); }
  std::vector<StepProfile> profiles(double seconds) {
    bool finite = true;
    return faster_half(profile_steps(stepper_, rows_.view(), 4, 200, seconds, &finite));
  }
  /// Mean of the faster half of the steps, at least two.
  double step_seconds(double seconds) {
    std::vector<double> taken;
    const double start = now();
    while (taken.size() < 4 || now() - start < seconds) {
      const double from = now();
      stepper_.run(rows_.view(), 1e-3, static_cast<int64_t>(taken.size()) + 2);
      taken.push_back(now() - from);
    }
    std::ranges::sort(taken);
    taken.resize(taken.size() / 2);
    return std::accumulate(taken.begin(), taken.end(), 0.0) / static_cast<double>(taken.size());
  }

 private:
  StepConfig config_;
  SyntheticRows rows_;
  Stepper stepper_;
};

struct Priced {
  std::string op, kernel, format;
  auto operator<=>(const Priced&) const = default;
};
using Samples = std::map<Priced, std::vector<PriceSample>>;

// One sample for nodes that do the same. Means of the same steps throughout, so that samples add up to them.
void add_samples(Training& training, double seconds, const CacheSizes& caches, Samples& samples) {
  const std::vector<StepProfile> profiles = training.profiles(seconds);
  const StepProfile& first = profiles.front();
  const double each = 1 / static_cast<double>(profiles.size());
  std::vector<double> mean(first.events.size());
  double outside = 0, step = 0;
  for (const StepProfile& p : profiles) {
    outside += each * p.outside_seconds(), step += each * p.seconds;
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += each * (p.events[i].span.end - p.events[i].span.start);
  }
  struct Group {
    Priced what;
    Work work;
    double seconds = 0, count = 0;
  };
  std::map<std::string, Group> groups;
  for (size_t i = 0; i < mean.size(); ++i) {
    const StepProfile::Event& e = first.events[i];
    const auto node = static_cast<size_t>(e.span.node);
    const Node& n = e.plan->graph.nodes[node];
    const Work work = work_of(e.plan->graph, n);
    const std::string name = priced_name(e.plan->graph, n);
    Group& g = groups[fmt::format("{} {} {} {} {} {}", name, work.format, work.flops, work.read, work.written,
                                  e.plan->kernels[node].name)];
    g.what = {name, std::string(e.plan->kernels[node].name), std::string(work.format)};
    g.work = work, g.seconds += mean[i], g.count += 1;
  }
  const double far = far_share(training.plan(), caches);
  for (const auto& [key, g] : groups)
    samples[g.what].push_back(
        {.work = g.work, .far_share = far, .seconds = g.seconds / g.count, .weight = g.seconds / step});
  samples[{std::string(outside_kernels), "", ""}].push_back({.work = outside_work(training.plan(), 1),
                                                             .far_share = far,
                                                             .seconds = std::max(outside, 1e-9),
                                                             .weight = outside / step});
}

void progress(const std::string& what) { fmt::print(stderr, "measuring {}\n", what); }

// Prices of one thread count, then the checks. What stays float32 in every format has one price for all.
void measure(Machine& m, int threads, const std::string& target, const std::vector<std::string>& recipes, double seconds,
             const CalibrationShapes& shapes) {
  const std::vector<Precision> all = precisions(recipes);
  const auto about = [&](const Precision& p, const TrainingShape& s) {
    return fmt::format("{}{}, {} thread{}: {}", p.dtype, p.recipe.empty() ? "" : " " + p.recipe, threads,
                       threads == 1 ? "" : "s", text_of(s));
  };
  Samples samples;
  for (const Precision& p : all)
    for (const TrainingShape& s : shapes.measured) {
      progress(about(p, s));
      Training training(s, threads, target, p);
      add_samples(training, seconds / 10, m.caches, samples);
    }
  for (const auto& [what, list] : samples) {
    OpPrice p = fit_price(list);
    p.op = what.op, p.kernel = what.kernel, p.format = what.format, p.threads = threads;
    m.prices.push_back(std::move(p));
  }
  for (const Precision& p : all)
    for (const TrainingShape& s : shapes.checked) {
      progress("check, " + about(p, s));
      Training training(s, threads, target, p);
      const auto forecast = forecast_step(training.plan(), 1, m);
      m.checks.push_back({.what = p.recipe.empty() ? text_of(s) : p.recipe + ", " + text_of(s),
                          .format = std::string(step_format(training.plan())),
                          .threads = threads,
                          .predicted = forecast ? forecast->seconds : 0,
                          .measured = training.step_seconds(seconds / 10)});
    }
}

std::string prices_text(const Machine& m) {
  size_t width = 26;
  for (const OpPrice& p : m.prices) width = std::max(width, p.op.size() + 1);
  std::string text = fmt::format("\n{:<{}}{:<12}{:<7}{:>8}{:>11}{:>10}{:>8}{:>8}{:>8}\n", "op", width, "kernel", "format",
                                 "threads", "us a call", "GFLOP/s", "GB/s", "far", "error");
  const auto rate = [](double seconds) { return seconds > 0 ? fmt::format("{:.1f}", 1e-9 / seconds) : "-"; };
  for (const OpPrice& p : m.prices)
    text += fmt::format("{:<{}}{:<12}{:<7}{:>8}{:>11.2f}{:>10}{:>8}{:>8}{:>6.1f} %\n", p.op, width, p.kernel, p.format,
                        p.threads, 1e6 * p.fixed, rate(p.flop), rate(p.byte), rate(p.far_byte), 100 * p.error);
  text += "\npredicted and then timed, no part of the prices:\n";
  for (const Check& c : m.checks)
    text += fmt::format("{:<68}{:<6}{} thread{} {:>9.2f} ms, {:>9.2f} measured, {:+.1f} %\n", c.what, c.format,
                        c.threads, c.threads == 1 ? " " : "s", 1e3 * c.predicted, 1e3 * c.measured,
                        100 * (c.predicted / c.measured - 1));
  return text;
}

}  // namespace

constinit const CalibrationShapes calibration_shapes{measured_shapes, checked_shapes};

BenchResult calibrate(Machine& machine, const std::vector<int>& threads, const std::string& target,
                      const std::vector<std::string>& recipes, double seconds, const CalibrationShapes& shapes) {
  Machine measured = this_machine();
  for (const int n : threads) {
    progress(fmt::format("limits, {} thread{}", n, n == 1 ? "" : "s"));
    measured.limits.push_back(measure_limits(n, measured.caches, seconds / 10));
    measure(measured, n, target, recipes, seconds, shapes);
  }
  machine.merge(measured);
  BenchResult r = bench_limits(machine, {}, 0);
  r.text += prices_text(machine);
  for (const Check& c : measured.checks)
    if (std::abs(c.predicted / c.measured - 1) > 0.1)
      r.warnings.push_back(
          fmt::format("{}, {}, {} threads: predicted {:.2f} ms, measured {:.2f}; was the machine busy?", c.what,
                      c.format, c.threads, 1e3 * c.predicted, 1e3 * c.measured));
  return r;
}

}  // namespace nibble
