// Whole optimizer steps on synthetic tokens.
#include <sys/resource.h>

#include <algorithm>

#include "bench/bench.h"
#include "bench/measure.h"
#include "bench/result.h"
#include "plan/report.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// Rows of tokens drawn uniformly, one segment each, as dataset_type=synthetic has them.
struct SyntheticRows {
  std::vector<int32_t> inputs, targets, segments, positions;
  std::vector<float> weights;
  int64_t rows;
  SyntheticRows(int64_t n, int64_t length, int64_t vocab) : rows(n) {
    const auto size = static_cast<size_t>(n * length);
    inputs.resize(size), targets.resize(size), positions.resize(size);
    segments.assign(size, 1), weights.assign(size, 1);
    const auto draw = [&](size_t i) {
      return static_cast<int32_t>(
          (static_cast<uint64_t>(static_cast<uint32_t>(i) * 2654435761u) * static_cast<uint64_t>(vocab)) >> 32);
    };
    for (size_t i = 0; i < size; ++i) {
      inputs[i] = draw(i), targets[i] = draw(i + 1);
      positions[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
    }
  }
  Rows view() const { return {inputs.data(), targets.data(), segments.data(), positions.data(), weights.data(), rows}; }
};

struct OpTime {
  OpRow row;  // of one step
  double seconds = 0;
};

// Adds the times of one executable, run `runs` times with profiling on, to the table by op and kernel.
void add_times(const Executable& x, double runs, double runs_a_step, std::vector<OpTime>& table) {
  const ExecutablePlan& plan = x.plan();
  const auto find = [&](std::string_view op, std::string_view kernel) {
    return std::ranges::find_if(table, [&](const OpTime& t) { return t.row.op == op && t.row.kernel == kernel; });
  };
  for (OpRow row : op_rows(plan)) {
    row.flops *= runs_a_step, row.bytes *= runs_a_step, row.nodes *= static_cast<int64_t>(runs_a_step);
    const auto at = find(row.op, row.kernel);
    if (at == table.end())
      table.push_back({row, 0});
    else
      at->row.nodes += row.nodes, at->row.flops += row.flops, at->row.bytes += row.bytes;
  }
  size_t step = 0;
  for (size_t i = 0; i < plan.graph.nodes.size(); ++i)
    if (plan.kernels[i].run != nullptr)
      find(plan.graph.nodes[i].op->name, plan.kernels[i].name)->seconds += x.seconds()[step++] * runs_a_step / runs;
}

struct TrainBench {
  Timing timing;                // of unprofiled steps
  double profiled_seconds = 0;  // mean
  std::vector<OpTime> ops;
  bool finite = true;
};

TrainBench run_steps(const BenchOptions& options, Stepper& stepper, Peak& peak, const Rows& rows, double flops) {
  TrainBench b;
  int64_t t = 1;
  const auto step = [&] {
    const double from = now();
    b.finite = stepper.run(rows, 1e-3, t++).updated && b.finite;
    return now() - from;
  };
  const double start = now();
  const double first_limit = peak.measure(), first = step();  // touches the memory
  for (int i = 0; i < options.repeats && now() - start < options.seconds; ++i) {
    const double limit = peak.measure();
    b.timing.add(step(), limit, flops);
  }
  if (b.timing.count() == 0) b.timing.add(first, first_limit, flops);  // one step takes longer than the whole budget
  const char* names[] = {"microbatch", "gradient_norm", "update"};
  for (const char* name : names) stepper.program().executable(name).set_profiling(true);
  int profiled = 0;
  do b.profiled_seconds += step(), ++profiled;
  while (profiled < 3 && now() - start < 1.3 * options.seconds);
  b.profiled_seconds /= profiled;
  for (const char* name : names) {
    const double a_step = name == names[0] ? static_cast<double>(stepper.config().accumulation) : 1;
    add_times(stepper.program().executable(name), profiled * a_step, a_step, b.ops);
  }
  std::ranges::stable_sort(b.ops, std::greater{}, &OpTime::seconds);
  return b;
}

std::string ops_text(const TrainBench& b) {
  std::string text = fmt::format("\n{:<26}{:>6}  {:<8}{:>10}{:>9}{:>11}{:>9}\n", "op", "nodes", "kernel", "ms",
                                 "of step", "GFLOP/s", "GB/s");
  double sum = 0;
  for (const OpTime& t : b.ops) {
    sum += t.seconds;
    text += fmt::format("{:<26}{:>6}  {:<8}{:>10.2f}{:>7.1f} %{:>11.1f}{:>9.1f}\n", t.row.op, t.row.nodes, t.row.kernel,
                        1e3 * t.seconds, 100 * t.seconds / b.profiled_seconds, t.row.flops / t.seconds / 1e9,
                        t.row.bytes / t.seconds / 1e9);
  }
  const double rest = std::max(0.0, b.profiled_seconds - sum);
  text += fmt::format("{:<26}{:>6}  {:<8}{:>10.2f}{:>7.1f} %\n", "outside the kernels", "", "", 1e3 * rest,
                      100 * rest / b.profiled_seconds);
  return text;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace

BenchResult bench_train(const Config& config, ProgramPlan plan, const BenchOptions& options) {
  const StepConfig c = step_of(config);
  const PlanReport report = make_report(plan, {.model_name = config.get_string("model_name"),
                                               .model = c.model,
                                               .batch = c.microbatch.rows,
                                               .length = c.microbatch.length,
                                               .accumulation = c.accumulation});
  const SyntheticRows rows(c.microbatch.rows * c.accumulation, c.microbatch.length, c.model.vocab);
  Stepper stepper(c, std::move(plan));
  initialize_parameters(stepper.program(), stepper.parameters(), 0);
  Peak peak(stepper.program().pool());
  const TrainBench b = run_steps(options, stepper, peak, rows.view(), report.executed_flops);
  const double seconds = b.timing.seconds(), tokens = static_cast<double>(rows.rows * c.microbatch.length),
               speed = report.executed_flops / seconds;
  BenchResult result = begin_result("train", config, stepper.program().plan(), peak);
  Json& j = result.json;
  j["rows"] = rows.rows, j["length"] = c.microbatch.length, j["parameters"] = report.parameters;
  j["step_seconds"] = seconds, j["repeats"] = b.timing.count(), j["tokens_per_second"] = tokens / seconds;
  j["executed_flops"] = report.executed_flops, j["flops_per_second"] = speed,
  j["model_flops_per_second"] = report.model_flops.total() / seconds;
  j["share"] = b.timing.has_share() ? Json(b.timing.share()) : Json();
  j["arena_bytes"] = report.arena_bytes, j["peak_resident_bytes"] = peak_resident_bytes();
  for (const OpTime& t : b.ops)
    j["operations"].push_back({{"op", t.row.op},
                               {"kernel", t.row.kernel},
                               {"nodes", t.row.nodes},
                               {"seconds", t.seconds},
                               {"flops", t.row.flops},
                               {"bytes", t.row.bytes}});
  if (!b.finite) result.warnings.emplace_back("a step was not finite");
  result.text += fmt::format("{} parameters, {} rows x {} tokens; median of {} steps {:.1f} ms (fastest {:.1f})\n",
                             grouped(report.parameters), rows.rows, c.microbatch.length, b.timing.count(),
                             1e3 * seconds, 1e3 * b.timing.fastest());
  result.text +=
      fmt::format("{:.0f} tokens/s   {:.1f} GFLOP/s executed, {} of peak   {:.1f} GFLOP/s by MaxText's formula\n",
                  tokens / seconds, speed / 1e9, b.timing.share_text(), report.model_flops.total() / seconds / 1e9);
  result.text +=
      fmt::format("memory {} planned, {} resident at most\n", size_text(static_cast<double>(report.arena_bytes)),
                  size_text(static_cast<double>(peak_resident_bytes())));
  result.text += ops_text(b);
  return result;
}

}  // namespace nibble
