// A trained model on disk, for commands that run it: a checkpoint of nibble, a run folder, a Hugging Face folder.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"
#include "io/hf_config.h"
#include "io/run_folder.h"
#include "io/safetensors.h"
#include "models/llama.h"
#include "runtime/program.h"

namespace nibble {

struct OpenModel {
  ModelSource source;
  LlamaShape shape;  // config.json
  LlamaConfig model;
  std::optional<Tokenizer> tokenizer;
  /// nibble.json's configuration (key, JSON text): ResolveOptions::stored. Empty for a Hugging Face folder.
  std::vector<std::pair<std::string, std::string>> stored;
  /// Sampling keys that generation_config.json sets (key, JSON text): they come before the defaults of the key table
  /// and after the command line (spec/generation.md 1.3). do_sample=false is temperature 0. Its eos_token_id is in
  /// shape.
  std::vector<std::pair<std::string, std::string>> generation;
  std::vector<std::string> notices;  // for people, one line each
  bool is_checkpoint() const { return source.kind == ModelSource::checkpoint; }
  std::vector<int32_t> eos() const;
};

/// Reads everything but the tensors. Errors: E204, E202, E401 to E403, E010 for another architecture, E308.
OpenModel open_model(const std::filesystem::path& path);
/// Fills the parameters of a program, and its rope table. Verifies what it reads of a checkpoint.
void load_weights(const OpenModel& open, Program& program);
/// The names and shapes of a model's parameters, as its files must have them.
std::vector<WantedTensor> wanted_tensors(const LlamaConfig& model);
/// Ids that a prompt becomes: with the tokenizer's template for a Hugging Face folder, with BOS if the model was
/// trained with it. Strings of special tokens are those tokens. Never empty.
std::vector<int32_t> prompt_ids(const OpenModel& open, std::string_view text);

}  // namespace nibble
