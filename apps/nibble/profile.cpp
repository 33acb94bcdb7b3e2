// nibble profile: one row per operation of a training step: time, speed, share of the machine's limit.
#include "bench/profile.h"

#include <cstdio>

#include "command.h"
#include "core/error.h"
#include "io/file.h"
#include "options.h"
#include "train/fits.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

int run(const std::vector<std::string>& arguments) {
  ResolveOptions options{.command = "profile"};
  options.flags = {"json", "layers", "ops"};
  options.word_options = {"trace", "repeats", "seconds"};
  const Resolved resolved = resolve_with_model(arguments, options);
  for (const std::string& notice : resolved.notices) fmt::print(stderr, "{}\n", notice);
  const auto given = [&](const char* option) { return resolved.options.contains(option); };
  if (given("layers") && given("ops"))
    throw Error("E102", "--layers and --ops exclude each other").hint("nibble profile --layers");
  const BenchOptions bench_options{.repeats = count_option(resolved, "repeats", 5),
                                   .seconds = static_cast<double>(count_option(resolved, "seconds", 15))};
  std::string note;
  const Config config = with_auto_recipe(resolved.config, std::nullopt, &note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  ProgramPlan plan = plan_training(step_of(config), resolve_threads(config.get_int("threads")),
                                   resolve_target(config.get_string("cpu_target")));
  check_fits(config, plan);
  const Grouping grouping = given("layers") ? Grouping::node : given("ops") ? Grouping::op : Grouping::site;
  const ProfileResult r = profile_training(config, std::move(plan), bench_options, grouping);
  for (const std::string& warning : r.result.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const std::string text = given("json") ? r.result.json.dump(2) + "\n" : r.result.text;
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (given("trace")) replace_file(resolved.options.at("trace"), r.trace);
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Runs a few training steps on synthetic tokens and prints where the fastest of
    them spent its time: one row per operation and place in the model, layers
    added up, the longest first. The rows and the time outside the kernels add up
    to the step.

    of limit   the time that the machine's limits allow, as a share of the time
               taken: operations over the peak of their format, or bytes over the
               bandwidth of the cache or memory that holds them, the larger
    ms above   what a kernel at its limit would save

    The peak is measured between the steps. Bandwidths come from the file that
    `nibble bench limits` keeps, or are measured for half a second.

KEYS
    those of nibble train; model_name=nibble-34m if none is given

OPTIONS
    --layers       one row a node, in order of execution
    --ops          one row an operation
    --trace FILE   the step as JSON for chrome://tracing or ui.perfetto.dev
    --repeats N    at most N steps (5)
    --seconds N    no step starts after N seconds (15)
    --json         one JSON object

EXIT STATUS
    0 done   64 usage   69 cpu_target is not on this CPU   74 the trace cannot be
    written   78 it does not fit (E107)

EXAMPLES
    nibble profile
    nibble profile model_name=nibble-1m per_device_batch_size=4 --ops
    nibble profile threads=1 --layers --trace step.json
)";

}  // namespace

constinit const Command profile_command{
    "profile",
    "nibble profile [config.yml] [key=value ...] [--layers|--ops] [--trace FILE] [--repeats N] [--seconds N] [--json]",
    "where the time of a training step goes", help, run};

}  // namespace nibble
