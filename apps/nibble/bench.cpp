// nibble bench: speed as a share of this machine's limits. What is measured, and how: src/bench.
#include "bench/bench.h"

#include <algorithm>
#include <cstdio>

#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "train/fits.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

int parse_count(const std::string& option, const std::string& word) {
  int n = 0;
  for (const char c : word) n = c >= '0' && c <= '9' && n < 100000 ? 10 * n + (c - '0') : -1000000;
  if (n < 1 || word.empty())
    throw Error("E002", "--{} {}", option, word).expected("an integer from 1 on", word).hint("--{} 5", option);
  return n;
}

int run(const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  for (const std::string_view later : {"attention", "quantize", "generate", "data", "all", "--calibrate"})
    if (name == later)
      throw Error("E010", "nibble bench {} is not in this version", name)
          .where("argument 1")
          .expected("gemm or train", name)
          .hint("nibble bench train");
  if (name != "gemm" && name != "train")
    throw Error("E007", "{}", name.empty() ? "nibble bench needs a name" : "nibble bench has no " + name)
        .where("argument 1")
        .expected("gemm or train", name)
        .hint("nibble bench train");
  std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  for (const std::string& w : words)
    for (const std::string_view later : {"--save", "--compare", "--layers", "--calibrate"})
      if (w == later || w.starts_with(std::string(later) + "="))
        throw Error("E010", "nibble bench {} is not in this version", later)
            .hint("nibble bench {} --json > file", name);
  ResolveOptions options{.command = "bench"};
  options.flags = {"json"};
  options.word_options = {"repeats", "seconds"};
  Resolved resolved = resolve(words, options);
  if (!resolved.config.is_set("model_name")) {
    words.insert(words.begin(), "model_name=nibble-34m");
    resolved = resolve(words, options);
  }
  for (const std::string& notice : resolved.notices) fmt::print(stderr, "{}\n", notice);
  const auto count = [&](const std::string& option, int otherwise) {
    return resolved.options.contains(option) ? parse_count(option, resolved.options.at(option)) : otherwise;
  };
  const BenchOptions bench_options{.repeats = count("repeats", name == "gemm" ? 15 : 10),
                                   .seconds = static_cast<double>(count("seconds", 15))};
  ProgramPlan plan = plan_training(step_of(resolved.config), resolve_threads(resolved.config.get_int("threads")),
                                   resolve_target(resolved.config.get_string("cpu_target")));
  check_fits(resolved.config, plan);
  const BenchResult result = name == "gemm" ? bench_gemm(resolved.config, plan, bench_options)
                                            : bench_train(resolved.config, std::move(plan), bench_options);
  for (const std::string& warning : result.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const std::string text = resolved.options.contains("json") ? result.json.dump(2) + "\n" : result.text;
  std::fwrite(text.data(), 1, text.size(), stdout);
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    gemm    the matrix products of a training step, each with the kernel that
            training uses, and one of 2048 x 2048 x 2048
    train   whole optimizer steps on synthetic tokens: tokens/s, and where the
            time goes by operation

    Speeds are medians, also given as a share of the machine's FMA peak, which is
    measured in between on all threads. GB/s counts every operand once.

KEYS
    those of nibble train; model_name=nibble-34m if none is given. threads,
    cpu_target, per_device_batch_size, max_target_length matter most.

OPTIONS
    --repeats N   at most N repeats (gemm 15, train 10)
    --seconds N   no repeat starts after N seconds (15); one always runs
    --json        one JSON object

EXIT STATUS
    0 done   64 usage, not in this version   69 cpu_target is not on this CPU
    78 it does not fit (E107)

EXAMPLES
    nibble bench gemm
    nibble bench train threads=1 cpu_target=avx2
    nibble bench train model_name=smollm2-135m max_target_length=256 --json
)";

}  // namespace

constinit const Command bench_command{"bench",
                                      "nibble bench gemm|train [key=value ...] [--repeats N] [--seconds N] [--json]",
                                      "speed as a share of this machine's peak", help, run};

}  // namespace nibble
