// One training step taken apart, for `nibble profile`.
#include "bench/profile.h"

#include "bench/limits.h"
#include "bench/result.h"
#include "train/machine_file.h"
#include "train/model_setup.h"

namespace nibble {

ProfileResult profile_training(const Config& config, ProgramPlan plan, const BenchOptions& options, Grouping grouping) {
  const StepConfig c = step_of(config);
  const Machine machine = find_machine(config).machine;
  const std::string format(step_format(plan));
  const SyntheticRows rows(c.microbatch.rows * c.accumulation, c.microbatch.length, c.model.vocab);
  Stepper stepper(c, std::move(plan));
  initialize_parameters(stepper.program(), stepper.parameters(), 0);
  Peak peak(stepper.program().pool(), format);
  bool finite = true;
  std::vector<StepProfile> profiles;
  const double start = now();
  for (int i = 0; i <= options.repeats && (i < 2 || now() - start < options.seconds); ++i) {
    peak.measure();
    profiles.push_back(profile_steps(stepper, rows.view(), 1, 1, 0, &finite).front());
    if (i == 0) profiles.clear();  // the first step touches the memory
  }
  const StepProfile& best = fastest(profiles);
  const Limits limits = limits_now(machine, stepper.program().pool().size(), peak);
  const std::vector<ProfileRow> table = profile_rows(best, grouping, limits, machine.caches);
  BenchResult r = begin_result("profile", config, stepper.program().plan(), peak.summary());
  r.json["rows"] = c.microbatch.rows * c.accumulation, r.json["length"] = c.microbatch.length;
  r.json["step_seconds"] = best.seconds, r.json["outside_seconds"] = best.outside_seconds();
  r.json["steps"] = profiles.size();
  r.json["operations"] = profile_json(table);
  r.text += fmt::format("{} rows x {} tokens; the fastest of {} steps; memory {:.1f} GB/s read, {:.1f} GB/s copied\n\n",
                        c.microbatch.rows * c.accumulation, c.microbatch.length, profiles.size(), limits.read / 1e9,
                        std::max(limits.copy, limits.stream_copy) / 1e9);
  r.text += profile_text(best, table);
  if (!finite) r.warnings.emplace_back("a step was not finite");
  return {std::move(r), trace_text(best, limits, machine.caches)};
}

}  // namespace nibble
