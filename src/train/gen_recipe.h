// gen_recipe: in what precision a trained model generates and is evaluated (spec/generation.md 1.2).
//   same              as the run was trained: its `quantization`; without one, the float32 masters; of a packed model the
//                     codes of its files, activations as they are
//   weight_only       the linear layers' weights as NVFP4 codes, activations as they are; the format is the recipe's of
//                     the run where that is NVFP4, else blocks of 1x16
//   weight_only_all   also the embedding table and the head, in blocks of 1x16
//   a recipe's name   that recipe's forward pass, whatever the run was trained with
#pragma once
#include <string>
#include <vector>

#include "io/checkpoint_load.h"
#include "io/config.h"
#include "passes/weight_only.h"
#include "runtime/program.h"
#include "train/open_model.h"

namespace nibble {

struct GenRecipe {
  std::string text;          // "te_nvfp4, amax of a row" for people
  Recipe recipe;             // of the linear layers; inactive: nothing is quantised
  bool weight_only = false;  // of `recipe`, the weights alone
  QuantSpec table;           // of embedding and head
  WeightSpecs packed;        // not empty: these weights are the codes of the model's files, and nothing else is quantised
};

/// What `gen_recipe` and, for `same`, `quantization` with its options say. Errors: E102 a recipe that needs the scales
/// of a training run, E502 an unknown name.
GenRecipe gen_recipe_of(const Config& config, int64_t layers);
/// `same` of a packed model (export_model.h): rounding its weights again would change them.
GenRecipe packed_recipe(const ParameterReader& reader, const LlamaConfig& model);

/// Puts it into forward graphs of one model and says what their `codes` are made of.
WeightSpecs apply_gen_recipe(const GenRecipe& recipe, std::vector<NamedGraph>& graphs);

/// Puts a parameter's elements where the program has them: as numbers, as codes, or both.
void put_weight(Program& program, const Parameter& p, const float* w, const WeightSpecs& specs);

/// Fills the parameters, the codes and the rope table of a program, one tensor at a time: a parameter that is needed as
/// codes only is never all in memory as numbers beside the others. `packed`: whose codes are taken as they are, or null.
/// Errors: as load_weights.
void load_weights(const OpenModel& open, Program& program, const WeightSpecs& specs, const ParameterReader* packed);

/// Weights of the loss graph as weight_only leaves them: the numbers that their codes stand for, in place of the
/// masters. linear on these is linear_w4 on the codes, bit for bit.
void round_trip_weights(Program& program, const WeightSpecs& specs);

/// "codes 56.2 MiB, float32 113.2 MiB": bytes of a program's weights.
std::string weight_bytes_text(const ProgramPlan& plan);

}  // namespace nibble
