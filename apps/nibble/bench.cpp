// nibble bench: speed as a share of this machine's limits. What is measured, and how: src/bench.
#include "bench/bench.h"

#include <algorithm>
#include <cstdio>

#include "bench/calibrate.h"
#include "bench/compare.h"
#include "bench/limits.h"
#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "io/file.h"
#include "options.h"
#include "train/fits.h"
#include "train/machine_file.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

constexpr std::string_view names = "limits, gemm, attention, ops, quantize, train or generate";

// What this version measures on its way to `plan`'s prices; `--calibrate` is one more.
void check_name(const std::string& name) {
  for (const std::string_view later : {"data", "all"})
    if (name == later)
      throw Error("E010", "nibble bench {} is not in this version", name)
          .where("argument 1")
          .expected(std::string(names), name)
          .hint("nibble bench train");
  for (const std::string_view known :
       {"limits", "gemm", "attention", "ops", "quantize", "train", "generate", "--calibrate"})
    if (name == known) return;
  throw Error("E007", "{}", name.empty() ? "nibble bench needs a name" : "nibble bench has no " + name)
      .where("argument 1")
      .expected(std::string(names), name)
      .hint("nibble bench train");
}

void print(const BenchResult& result, bool json) {
  for (const std::string& warning : result.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const std::string text = json ? result.json.dump(2) + "\n" : result.text;
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// bench limits, bench --calibrate: what is measured goes to the machine's file.
int run_machine(const std::string& name, const std::vector<std::string>& words) {
  ResolveOptions options{.command = "bench"};
  options.flags = {"json"};
  options.word_options = {"seconds", "out"};
  const Resolved resolved = resolve(words, options);
  for (const std::string& notice : resolved.notices) fmt::print(stderr, "{}\n", notice);
  const Config& config = resolved.config;
  const int threads = resolve_threads(config.get_int("threads"));
  const std::vector<int> counts = config.is_set("threads") ? std::vector{threads} : thread_counts(threads);
  const auto out = resolved.options.find("out");
  MachineFile file =
      read_machine(out == resolved.options.end() ? own_machine_path() : std::filesystem::path(out->second));
  const std::string recipe = config.is_set("quantization") ? config.get_string("quantization") : "te_nvfp4";
  const std::vector<std::string> recipes(recipe.empty() ? 0 : 1, recipe);
  const BenchResult result = name == "limits" ? bench_limits(file.machine, counts, count_option(resolved, "seconds", 3))
                                              : calibrate(file.machine, counts, config.get_string("cpu_target"), recipes,
                                                          count_option(resolved, "seconds", 30));
  write_machine(file.path, file.machine);
  print(result, resolved.options.contains("json"));
  if (!resolved.options.contains("json")) fmt::print("kept in {}\n", file.path.string());
  return exit_done;
}

// Of the unquantized step; a recipe would hide the shapes.
bool measures_shapes(const std::string& name) { return name == "gemm" || name == "quantize" || name == "ops"; }

BenchResult run_bench(const std::string& name, const Config& config, ProgramPlan plan, const BenchOptions& options) {
  if (name == "gemm") return bench_gemm(config, plan, options);
  if (name == "attention") return bench_attention(config, plan, options);
  if (name == "ops") return bench_ops(config, plan, options);
  if (name == "quantize") return bench_quantize(config, plan, options);
  return bench_train(config, std::move(plan), options);
}

struct Guard {
  std::string save, compare, saved;  // files, and the text of the one to compare with
  double tolerance = 0.05;
};

// Reads the file before anything is measured: a wrong name is known at once.
Guard guard_of(const Resolved& resolved) {
  Guard g;
  const auto option = [&](const std::string& name) {
    const auto at = resolved.options.find(name);
    return at == resolved.options.end() ? std::string() : at->second;
  };
  g.save = option("save"), g.compare = option("compare");
  g.tolerance = 0.01 * count_option(resolved, "tolerance", 5);
  if (!g.compare.empty()) g.saved = read_file(g.compare);
  if (resolved.options.contains("tolerance") && g.compare.empty())
    throw Error("E102", "--tolerance without --compare").hint("nibble bench train --compare FILE --tolerance 5");
  return g;
}

// Compares, then saves. Returns whether no row got slower.
bool apply(const Guard& guard, BenchResult& result) {
  if (result.samples.empty() && !(guard.save.empty() && guard.compare.empty()))
    throw Error("E503", "no limit of this CPU can be timed beside the repeats: it has no AVX2")
        .hint("nibble bench {} --json > file", result.json["bench"].get<std::string>());
  const bool fine = guard.compare.empty() || compare_bench(result, guard.saved, guard.compare, guard.tolerance);
  if (!guard.save.empty()) replace_file(guard.save, saved_bench(result));
  return fine;
}

int run(const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  check_name(name);
  const std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  if (name == "limits" || name == "--calibrate") return run_machine(name, words);
  for (const std::string& w : words)
    if (w == "--layers" || w.starts_with("--layers="))
      throw Error("E010", "nibble bench --layers is not in this version")
          .hint("nibble bench {} override_model_config=true base_num_decoder_layers=1", name);
  ResolveOptions options{.command = "bench"};
  options.flags = {"json"};
  options.word_options = {"repeats", "seconds", "save", "compare", "tolerance"};
  const Resolved resolved = resolve_with_model(words, options);
  for (const std::string& notice : resolved.notices) fmt::print(stderr, "{}\n", notice);
  const BenchOptions bench_options{.repeats = count_option(resolved, "repeats", name == "train" ? 10 : 15),
                                   .seconds = static_cast<double>(count_option(resolved, "seconds", 15))};
  if (measures_shapes(name) && !resolved.config.get_string("quantization").empty())
    throw Error("E102", "bench {} takes no recipe: its rows are of every format", name)
        .where("{}", resolved.config.origin("quantization"))
        .hint("nibble bench train quantization={}", resolved.config.get_string("quantization"));
  const Guard guard = guard_of(resolved);
  if (name == "generate") {
    BenchResult result = bench_generate(resolved.config, bench_options);
    const bool fine = apply(guard, result);
    print(result, resolved.options.contains("json"));
    return fine ? exit_done : exit_no;
  }
  std::string note;
  const Config config = with_auto_recipe(resolved.config, std::nullopt, &note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  ProgramPlan plan = plan_training(step_of(config), resolve_threads(config.get_int("threads")),
                                   resolve_target(config.get_string("cpu_target")));
  check_fits(config, plan);
  BenchResult result = run_bench(name, config, std::move(plan), bench_options);
  const bool fine = apply(guard, result);
  print(result, resolved.options.contains("json"));
  return fine ? exit_done : exit_no;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    limits       what this machine can do at most, for 1 to all threads: multiply-
                 adds of float32, BF16 and int8, loads from each cache, reads,
                 copies and streaming stores of memory. Kept in this machine's file
    gemm         the matrix products of a training step, each with the kernel that
                 training uses, and one of 2048 x 2048 x 2048; and the same of 4-bit
                 operands (nvfp4), as a share of the peak of int8
    attention    attention of the model, forward and backward, T from 128 to 8192
    ops          every other operation of a step, at the node that moves most bytes
    quantize     numbers to 4 and 8 bits, for 1 to all threads: the widest input and
                 weight of the linear layers; GB/s counts the numbers once
    train        whole optimizer steps on synthetic tokens: tokens/s, where the time
                 goes by operation, and how long the first loss took
    generate     decoding and prompts of 512 tokens with random weights, for 1 to all
                 threads, in float32, with 4-bit weights (weight_only,
                 weight_only_all) and in te_nvfp4: tokens/s. Decoding also as a
                 share of reading its weights alone, which is timed beside it
    --calibrate  limits, and what `nibble plan` needs to predict the time of a step:
                 every operation of training steps of seven shapes, in float32 and
                 bfloat16, with and without quantization= (te_nvfp4); then predicts
                 and times three others. Three or four minutes for each thread
                 count. Kept in this machine's file, beside the prices of other recipes

    Speeds are medians, also given as a share of the limit that applies: the peak
    of the operands' format, which is measured in between on all threads, or bytes
    over the bandwidth of the smallest cache that holds them, or of memory. GB/s
    counts every operand once.

KEYS
    those of nibble train; model_name=nibble-34m if none is given. threads,
    cpu_target, per_device_batch_size, max_target_length matter most. limits and
    --calibrate take threads (that count only) and cpu_target, --calibrate a recipe.

OPTIONS
    --repeats N   at most N repeats (15; train 10)
    --seconds N   no repeat starts after N seconds (15); one always runs. limits: for
                  each thread count (3); --calibrate: for each and each format (30)
    --out FILE    limits, --calibrate: keep the figures there, for machine=FILE
    --save FILE   keep the share of every repeat (not of limits)
    --compare FILE  judge this run against a saved one, row by row: ratio of the
                  medians, its 99 % interval (bootstrap), verdict. Each repeat is a
                  share of a limit timed right beside it (multiply-adds; for ops
                  and quantize a copy of as many bytes), so that the machine's weather divides out
    --tolerance N percent that a row may lose (5). It is slower if the whole
                  interval lies below
    --json        one JSON object

FILES
    $XDG_CACHE_HOME/nibble/machine-CPU-HASH.json, else under ~/.cache

EXIT STATUS
    0 done   1 a row got slower than --compare allows   64 usage, not in this version   65 a wrong machine file (E114)
    69 cpu_target is not on this CPU   73, 74 the file cannot be written
    66 no file to compare with   78 it does not fit (E107), or a saved benchmark of
    another CPU or configuration (E117)

EXAMPLES
    nibble bench limits
    nibble bench --calibrate threads=2
    nibble bench --calibrate quantization=mxfp4
    nibble bench train threads=1 cpu_target=avx2
    nibble bench ops --save before.json; ...; nibble bench ops --compare before.json
    nibble bench generate model_name=smollm2-135m prefill_chunk=512
    nibble bench train model_name=smollm2-135m max_target_length=256 --json
)";

}  // namespace

constinit const Command bench_command{
    "bench",
    "nibble bench limits|gemm|attention|ops|quantize|train|generate|--calibrate [key=value "
    "...] [--repeats N] [--seconds N] [--out FILE]"
    " [--save FILE] [--compare FILE] [--tolerance N] [--json]",
    "speed as a share of this machine's limits", help, run};

}  // namespace nibble
