// nibble train: resolve the configuration, then the training loop of src/train/trainer.cpp.
#include <cstdio>

#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "train/trainer.h"

namespace nibble {
namespace {

int run(const std::vector<std::string>& arguments) {
  ResolveOptions grammar;
  grammar.flags = {"quiet", "v", "dry-run"};
  grammar.word_options = {"log-file"};
  const Resolved r = resolve(arguments, grammar);
  TrainOptions options;
  options.quiet = r.options.contains("quiet"), options.verbose = r.options.contains("v"),
  options.dry_run = r.options.contains("dry-run");
  if (r.options.contains("log-file")) options.log_file = r.options.at("log-file");
  options.notices = r.notices;
  return run_training(r.config, options);
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Trains a Llama-family model in float32 and writes a run folder
    <base_output_directory>/<run_name>/ with config.yml, metrics.jsonl, samples
    and checkpoints that transformers can load. To resume a run: nibble train
    <run folder>/config.yml, or the same command if it names run_name.

    Text files alone (nibble train book.txt) mean model_name=nibble-1m
    steps=1000 eval_fraction=0.05 eval_holdout=tail sample_interval=200 and a
    tokenizer trained on the files; each of these may be set.

OPTIONS
    --quiet        warnings, errors and the end summary only
    -v             also which kernels run, and why
    --dry-run      check everything, train nothing
    --log-file F   copy every line to F

KEYS
    All keys, their types and defaults: nibble config keys
    One key:                            nibble config explain KEY
    Often set: model_name, steps, train_files, eval_files, eval_interval,
    per_device_batch_size, max_target_length, gradient_accumulation_steps,
    learning_rate, lr_schedule_type, checkpoint_period, run_name, threads

EXIT STATUS
    0 done   64 usage   65 bad data   66 no input   69 not on this machine
    73 output   74 write failed   75 stopped by a signal, state saved
    78 configuration   81 non-finite values   130 interrupted, state saved

SIGNALS
    SIGTERM, SIGUSR1, SIGHUP   finish the step, save, exit 75
    SIGINT                     the same, exit 130; twice: leave at once
    SIGUSR2                    save now and go on

EXAMPLES
    nibble train book.txt
    nibble train corpus/*.txt model_name=nibble-34m steps=2000 run_name=a
    nibble train dataset_type=synthetic model_name=nibble-1m steps=50
)";

}  // namespace

constinit const Command train_command{"train", "nibble train [config.yml | text files] [key=value ...]",
                                      "train a model, or resume a run", help, run};

}  // namespace nibble
