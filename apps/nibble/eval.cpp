// nibble eval: held-out loss and bits per byte of a model on files, or on the run's own evaluation set.
#include <cstdio>

#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "io/file.h"
#include "train/data_setup.h"
#include "train/evaluation.h"
#include "train/gen_recipe.h"
#include "train/model_setup.h"
#include "train/open_model.h"

namespace nibble {
namespace {

// The masters in float32, unless the command line asks for another dtype or a recipe. Returns whose weights become the
// numbers that 4-bit codes stand for.
WeightSpecs set_precision(const Config& config, StepConfig* step) {
  const bool recipe = config.is_explicit("quantization") || config.is_explicit("recipe_file");
  if ((config.is_explicit("dtype") || recipe) && config.get_string("dtype") == "bfloat16") step->dtype = DType::bf16;
  if (!recipe && !config.is_explicit("gen_recipe")) return {};
  const GenRecipe chosen = gen_recipe_of(config, step->model.layers);
  if (!chosen.weight_only) {
    step->recipe = chosen.recipe;
    return {};
  }
  const Graph graph = llama_loss_graph(step->model, {1, 1}, 0);
  return weight_specs(graph, quantized_sites(graph, chosen.recipe), chosen.table);
}

// Data keys that are no part of what determines a result are in run_info.json: the files of the run itself.
std::vector<std::string> run_files(const OpenModel& open, const char* key) {
  const std::filesystem::path file = open.source.path / "run_info.json";
  if (!open.is_checkpoint() || !std::filesystem::exists(file)) return {};
  std::vector<std::string> words;
  std::string problem;
  const Json info = parse_json(read_file(file), problem);
  if (info.contains(key))
    for (const Json& path : info.at(key)) words.push_back(path.get<std::string>());
  return words;
}

Config with_files(const Config& config, const OpenModel& open) {
  Config c = config;
  if (!c.get_list("eval_files").empty()) {
    if (!c.is_explicit("dataset_type")) c = c.with("dataset_type", "auto", "files are given");  // not the run's
    return c.with("eval_fraction", "0", "files are given");
  }
  for (const char* key : {"eval_files", "train_files"}) {
    const std::vector<std::string> files = run_files(open, key);
    if (!files.empty()) c = c.with(key, Json(files).dump(), "the run");
  }
  if (c.get_list("eval_files").empty() && (c.get_list("train_files").empty() || c.get_double("eval_fraction") == 0))
    throw Error("E201", "no files are given and {} has no evaluation set of its own", open.source.path.string())
        .hint("nibble eval {} text.txt", open.source.path.string());
  return c;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].find('=') != std::string::npos || arguments[0].starts_with('-'))
    throw Error("E204", "eval needs a checkpoint, a run folder or a Hugging Face folder")
        .where("argument 1")
        .hint("nibble eval nibble_output/RUN");
  const OpenModel open = open_model(arguments[0]);
  ResolveOptions grammar;
  grammar.command = "eval", grammar.operands = 1, grammar.stored = open.stored, grammar.files_key = "eval_files";
  const Resolved r = resolve(arguments, grammar);
  for (const auto* notices : {&open.notices, &r.notices})
    for (const std::string& notice : *notices) fmt::print(stderr, "note: {}\n", notice);
  Config config = with_files(r.config, open).with("vocab_size", fmt::format("{}", open.model.vocab), "the model");
  StepConfig step;
  step.model = open.model;
  const double rows = config.get_double("eval_per_device_batch_size");
  step.evaluation = {rows > 0 ? static_cast<int64_t>(rows) : 8, config.get_int("max_target_length")};
  step.z_loss = config.get_double("z_loss_multiplier");
  std::string note;
  if (config.is_explicit("quantization")) config = config.with("recipe_file", "\"\"", "quantization is given");
  config = with_auto_recipe(config, std::nullopt, &note);
  if (!note.empty()) fmt::print(stderr, "note: {}\n", note);
  const WeightSpecs codes = set_precision(config, &step);
  ThreadPool pool(resolve_threads(config.get_int("threads")));
  const TrainingData data = prepare_data(
      {config, open.source.path, std::filesystem::temp_directory_path() / "nibble_eval_cache", pool, {}, false});
  if (!data.evaluation)
    throw Error("E201", "dataset_type={} has no evaluation set", config.get_string("dataset_type"))
        .where("{}", config.origin("dataset_type"))
        .hint("nibble eval {} text.txt", open.source.path.string());
  Stepper stepper(step, plan_evaluation(step, pool.size(), resolve_target(config.get_string("cpu_target"))));
  load_weights(open, stepper.program());
  round_trip_weights(stepper.program(), codes);
  Batch batch(step.evaluation.rows, step.evaluation.length);
  const bool json = config.get_bool("json");
  const EvaluationRecord e =
      evaluate(stepper, *data.evaluation, batch, config.get_int("eval_steps"), 0, [](std::string_view) {});
  if (json)
    fmt::print("{}\n", Json{{"loss", e.loss},
                            {"perplexity", std::exp(e.loss)},
                            {"total_weights", e.targets},
                            {"bits_per_byte", e.bits_per_byte}}
                           .dump());
  else
    fmt::print("loss={:.4f}, perplexity={:.3f}, total_weights={:.1f}, avg_z_loss={:.3f}, bits_per_byte={:.4f}\n",
               e.loss, std::exp(e.loss), static_cast<double>(e.targets), e.z_loss, e.bits_per_byte);
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Prints the loss of a model on files, in nats per token and in bits per byte
    (which compares across tokenizers). Without files: the evaluation set of
    the run, held out by eval_fraction or given as eval_files.

KEYS
    eval_per_device_batch_size, eval_steps, max_target_length, text_document,
    threads, cpu_target, json; dtype and quantization: evaluates the rounded or
    quantized weights and activations instead of the float32 masters;
    gen_recipe=weight_only (weight_only_all): the loss with 4-bit weights, as
    nibble generate has them

EXIT STATUS
    0 done   64 usage   65 bad data   66 no model or no data
    78 a recipe that eval cannot run

EXAMPLES
    nibble eval nibble_output/quickstart
    nibble eval nibble_output/quickstart other_book.txt
)";

}  // namespace

constinit const Command eval_command{"eval", "nibble eval CKPT [files] [key=value ...]", "held-out loss of a model",
                                     help, run};

}  // namespace nibble
