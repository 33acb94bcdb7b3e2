// From configuration and checkpoints to the structures of the engine: model, optimizer, schedule, one step.
#pragma once
#include "io/config.h"
#include "io/hf_config.h"
#include "train/schedule.h"
#include "train/step.h"

namespace nibble {

/// The model that the architecture keys describe.
LlamaConfig llama_of(const Config& config);
/// The model of a Hugging Face config.json.
LlamaConfig llama_of(const LlamaShape& shape);
/// What config.json says of the model; max_positions: T of the run if the model sets no limit.
LlamaShape hf_shape_of(const LlamaConfig& model, int64_t max_positions);

OptimizerConfig optimizer_of(const Config& config);
Schedule schedule_of(const Config& config);
/// What `quantization`, or recipe_file, and the keys beside it say. Errors: E102 for
/// quantization=auto, which with_auto_recipe resolves.
Recipe recipe_of(const Config& config, int64_t layers);
/// How the run ends, if finish_high_precision or the recipe's file says so. E102 for a start at a decay that the
/// schedule has not, and for a recipe that cannot end so.
std::optional<Finish> finish_of(const Config& config, const Recipe& recipe);
/// "finish_high_precision=fwd_bf16 from step 90 on"
std::string finish_text(const Finish& finish);
/// "bfloat16, te_nvfp4"
std::string precision_text(const Config& config);

/// What quantization=auto chooses ("": no recipe) on this CPU for a model of this width, and why.
struct AutoRecipe {
  std::string name, why;
};
AutoRecipe auto_recipe(CpuTarget target, int64_t width);
/// `config` with a recipe's name in the place of quantization=auto: the one that the run began with, if there is one,
/// else auto_recipe. `line` becomes what was chosen and why, to be printed; "" if the choice was not left to nibble.
Config with_auto_recipe(const Config& config, const std::optional<std::string>& of_run, std::string* line);
/// With an evaluation executable where there is a set to evaluate on: eval_files, or eval_fraction > 0.
StepConfig step_of(const Config& config);

/// numerics=maxtext keeps 1/sqrt(D) in the q weights: stored checkpoints hold them times sqrt(D), an exact power of
/// two.
bool folds_scores(const Config& config);

/// Initial weights (spec/training.md 2.2), drawn by the pool's threads; the same bits for any number of them.
void initialize_parameters(Program& program, const std::vector<Parameter>& parameters, uint32_t seed);

/// threads=0 is all cores; the target by name, "auto" the best. Errors: E503 for one that this CPU lacks.
int resolve_threads(int64_t threads);
CpuTarget resolve_target(const std::string& name);

}  // namespace nibble
