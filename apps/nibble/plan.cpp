// nibble plan: what a run will take and do, before anything of it is allocated: memory, FLOPs, matrix products with
// their kernels, the time of a step on a machine that was measured.  Source: spec/plan.md 1, 3, 4, 8, 11; this version
// prices CPUs only and searches nothing.
#include "plan/report.h"

#include <cstdio>

#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "plan/price.h"
#include "train/fits.h"
#include "train/machine_file.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

// Options of spec/plan.md 1 that need more than one configuration.
void refuse_later_options(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i)
    for (const std::string_view option : {"--search", "--rows", "--compare"})
      if (arguments[i] == option || arguments[i].starts_with(std::string(option) + "="))
        throw Error("E010", "nibble plan {} is not in this version", option)
            .where("argument {}", i + 1)
            .hint("nibble plan with one configuration at a time");
}

int run(const std::vector<std::string>& arguments) {
  refuse_later_options(arguments);
  ResolveOptions options{.command = "plan"};
  options.flags = {"json", "layers", "v"};
  const Resolved r = resolve(arguments, options);
  for (const std::string& notice : r.notices) fmt::print(stderr, "{}\n", notice);
  std::string recipe_note;
  const Config config = with_auto_recipe(r.config, std::nullopt, &recipe_note);
  const StepConfig step = step_of(config);
  const ProgramPlan plan =
      plan_run(config, resolve_threads(config.get_int("threads")), resolve_target(config.get_string("cpu_target")));
  PlanSubject subject{.model_name = config.get_string("model_name"),
                      .model = step.model,
                      .batch = step.microbatch.rows,
                      .length = step.microbatch.length,
                      .accumulation = step.accumulation,
                      .steps = total_steps(config),
                      .memory_limit = memory_limit_of(config),
                      .remat_policy = config.get_string("remat_policy"),
                      .precision = precision_text(config),
                      .recipe_note = recipe_note,
                      .unquantized = unquantized_sites(step),
                      .finish = step.finish ? finish_text(*step.finish) : "",
                      .checkpoint_copy = checkpoint_copy_bytes(config, plan)};
  const PlanReport report = make_report(plan, std::move(subject), r.options.contains("layers"));
  const MachineFile machine = find_machine(config);
  const auto forecast = forecast_step(plan, step.accumulation, machine.machine);
  const auto finish = step.finish ? forecast_step(plan, step.accumulation, machine.machine, true) : std::nullopt;
  std::string text;
  if (r.options.contains("json")) {
    auto json = plan_json(report);
    json["time"] = forecast_json(forecast, machine.machine);
    if (step.finish) json["finish"]["time"] = forecast_json(finish, machine.machine);
    text = json.dump(2) + "\n";
  } else {
    const int64_t tokens = report.subject.batch * report.subject.length * report.subject.accumulation;
    text =
        plan_text(report, r.options.contains("v")) + forecast_text(forecast, machine.machine, plan.threads, tokens,
                                                                   report.model_flops.total(), machine.path.string());
    if (finish)
      text += "\n" + report.subject.finish +
              forecast_text(finish, machine.machine, plan.threads, tokens, report.model_flops.total(),
                            machine.path.string());
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // before an error on stderr
  check_fits(config, plan);
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Takes the arguments of `nibble train`, makes the same checks, and prints what
    the run would be: memory to the byte and by class, the largest tensors, FLOPs
    and traffic of a step, every matrix product with its kernel, the time of a step. Opens no data
    file and allocates nothing of the run, so any model can be planned anywhere.

    model FLOPs     MaxText's formula: what TFLOP/s figures are published with
    executed FLOPs  what the kernels do
    time            of a step on this CPU, from the file that `nibble bench
                    --calibrate` made; the range is the worst of its own checks
    kept, live      activations that wait for the backward pass, and the others,
                    where the most is alive
    recompute       what remat_policy computes again to save memory

OPTIONS
    --layers   one row a matrix product, not one for equal layers
    --json     one JSON object, schema nibble-plan-1
    -v         also why faster kernels were passed over

KEYS
    those of nibble train; memory_limit=16Gi plans for another machine's memory,
    machine=FILE for its speed

EXIT STATUS
    0 it fits   64 usage   65 a wrong machine file (E114)   66 file missing
    69 not on this CPU
    78 it does not fit (E107, after the plan), or values that do not go together

EXAMPLES
    nibble plan model_name=nibble-34m dataset_type=synthetic
    nibble plan model_name=llama3.1-405b memory_limit=10T
    nibble plan book.txt model_name=nibble-10m --json
)";

}  // namespace

constinit const Command plan_command{"plan", "nibble plan [config.yml] [key=value ...] [--layers] [--json] [-v]",
                                     "memory, FLOPs and kernels of a run, allocating nothing", help, run};

}  // namespace nibble
