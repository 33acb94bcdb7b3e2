// recipe_file: a recipe of one's own as YAML, operand by operand, from nothing or on top of a recipe of the table.
// What a file may say: docs/quantization.md.  Source: spec/precision.md 3.4, 3.7; spec/training.md 1.5.
#pragma once
#include <optional>
#include <string>

#include "recipes/recipe.h"

namespace nibble {

struct RecipeFile {
  Recipe recipe;                        // named after the file
  std::string finish;                   // "fwd_bf16", ...; "" where the file does not say
  std::optional<int64_t> finish_start;  // a step; none: the decay
};

/// layers: of the model, for a base that leaves out a share of them. Errors, all mistakes of a file together, each with
/// file, line and key: E005 missing, E006 no YAML, E001 unknown keys, E003 a key twice, E002 values, E502 an unknown
/// base, E102 a rule of spec/precision.md 3.7, or nothing quantised.
RecipeFile read_recipe_file(const std::string& path, int64_t layers);

}  // namespace nibble
