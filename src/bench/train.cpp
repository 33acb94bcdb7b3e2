// Whole optimizer steps on synthetic tokens.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

#include "bench/bench.h"
#include "bench/limits.h"
#include "bench/measure.h"
#include "bench/result.h"
#include "bench/step_profile.h"
#include "plan/report.h"
#include "train/machine_file.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// Seconds since this process was started, to 10 ms: what a person waits.
double process_seconds() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // the name may hold spaces
  std::string word;
  for (int field = 3; field <= 22; ++field) fields >> word;  // 22: start, in clock ticks after boot
  timespec boot{};
  clock_gettime(CLOCK_BOOTTIME, &boot);
  return static_cast<double>(boot.tv_sec) + 1e-9 * static_cast<double>(boot.tv_nsec) -
         std::strtod(word.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

struct Measured {
  double first_begins = 0, first_loss = 0;  // seconds after the start of the process
  Timing timing;                            // of unprofiled steps
  PeakSummary peak;
  Limits limits;  // the machine's, with the peak of this run
  StepProfile profile;
  bool finite = true;
};

Measured run_steps(const BenchOptions& options, Stepper& stepper, const std::string& format, const Machine& machine,
                   const Rows& rows, double flops) {
  Measured m;
  int64_t t = 1;
  const auto step = [&] {
    const double from = now();
    m.finite = stepper.run(rows, 1e-3, t++).updated && m.finite;
    return now() - from;
  };
  m.first_begins = process_seconds();
  step();  // touches the memory
  m.first_loss = process_seconds();
  Peak peak(stepper.program().pool(), format);
  const double start = now();
  for (int i = 0; i < options.repeats && (i == 0 || now() - start < options.seconds); ++i) {
    const double limit = peak.measure();
    m.timing.add(step(), limit, flops);
  }
  m.profile = fastest(profile_steps(stepper, rows, 1, 5, 0.3 * options.seconds, &m.finite));
  m.limits = limits_now(machine, stepper.program().pool().size(), peak);
  m.peak = peak.summary();
  return m;
}

double fraction(double part, double whole) { return whole > 0 ? part / whole : 0; }

void append_json(Json& j, const Measured& m, const PlanReport& report, const StepConfig& c, double limit) {
  const double seconds = m.timing.seconds();
  const int64_t rows = c.microbatch.rows * c.accumulation;
  j["rows"] = rows, j["length"] = c.microbatch.length, j["parameters"] = report.parameters;
  j["step_seconds"] = seconds, j["repeats"] = m.timing.count();
  j["tokens_per_second"] = static_cast<double>(rows * c.microbatch.length) / seconds;
  j["executed_flops"] = report.executed_flops, j["flops_per_second"] = report.executed_flops / seconds,
  j["model_flops_per_second"] = report.model_flops.total() / seconds;
  j["share"] = m.timing.has_share() ? Json(m.timing.share()) : Json();
  j["limit_seconds"] = limit, j["share_of_limit"] = fraction(limit, seconds);
  j["first_step_begins_seconds"] = m.first_begins, j["first_loss_seconds"] = m.first_loss;
  j["arena_bytes"] = report.arena_bytes, j["peak_resident_bytes"] = peak_resident_bytes();
  j["profiled_seconds"] = m.profile.seconds, j["outside_seconds"] = m.profile.outside_seconds();
}

void append_text(std::string& text, const Measured& m, const PlanReport& report, const StepConfig& c, double limit) {
  const double seconds = m.timing.seconds();
  const int64_t rows = c.microbatch.rows * c.accumulation;
  text += fmt::format("{} parameters, {} rows x {} tokens; median of {} steps {:.1f} ms (fastest {:.1f})\n",
                      grouped(report.parameters), rows, c.microbatch.length, m.timing.count(), 1e3 * seconds,
                      1e3 * m.timing.fastest());
  text += fmt::format("{:.0f} tokens/s   {:.1f} GFLOP/s executed, {} of peak   {:.1f} GFLOP/s by MaxText's formula\n",
                      static_cast<double>(rows * c.microbatch.length) / seconds, report.executed_flops / seconds / 1e9,
                      m.timing.share_text(), report.model_flops.total() / seconds / 1e9);
  text += fmt::format("peak and bandwidth allow {:.1f} ms: {:.1f} % of the limit reached\n", 1e3 * limit,
                      100 * fraction(limit, seconds));
  text += fmt::format("memory {} planned, {} resident at most\n", size_text(static_cast<double>(report.arena_bytes)),
                      size_text(static_cast<double>(peak_resident_bytes())));
  text += fmt::format("first loss {:.2f} s after the start of the program: the first step began after {:.2f} s\n\n",
                      m.first_loss, m.first_begins);
}

}  // namespace

BenchResult bench_train(const Config& config, ProgramPlan plan, const BenchOptions& options) {
  const StepConfig c = step_of(config);
  const PlanReport report = make_report(plan, {.model_name = config.get_string("model_name"),
                                               .model = c.model,
                                               .batch = c.microbatch.rows,
                                               .length = c.microbatch.length,
                                               .accumulation = c.accumulation});
  const Machine machine = find_machine(config).machine;
  const std::string format(step_format(plan));
  const SyntheticRows rows(c.microbatch.rows * c.accumulation, c.microbatch.length, c.model.vocab);
  Stepper stepper(c, std::move(plan));
  initialize_parameters(stepper.program(), stepper.parameters(), 0);
  const Measured m = run_steps(options, stepper, format, machine, rows.view(), report.executed_flops);
  const std::vector<ProfileRow> ops = profile_rows(m.profile, Grouping::op, m.limits, machine.caches);
  double limit = 0;
  for (const ProfileRow& row : ops) limit += row.limit;
  BenchResult result = begin_result("train", config, stepper.program().plan(), m.peak);
  append_json(result.json, m, report, c, limit);
  result.json["operations"] = profile_json(ops);
  if (m.timing.has_share()) result.samples.push_back({"step", m.timing.shares()});
  append_text(result.text, m, report, c, limit);
  result.text += profile_text(m.profile, ops);
  if (!m.finite) result.warnings.emplace_back("a step was not finite");
  return result;
}

}  // namespace nibble
