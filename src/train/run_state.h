// What a run is besides its configuration: where it lies, where it starts from, what it saves.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/config.h"
#include "io/run_folder.h"
#include "train/data_setup.h"
#include "train/step.h"

namespace nibble {

/// Counters that a checkpoint holds beside the tensors.
struct Progress {
  int64_t step = 0;      // completed steps = index of the next one
  int64_t updates = 0;   // t of the optimizer
  int64_t position = 0;  // rows consumed
  int64_t tokens = 0;    // rows times T
  std::vector<int64_t> skipped;
};

/// Where a run starts (spec/training.md 6.2): its own newest valid checkpoint, load_full_state_path,
/// load_parameters_path, or fresh weights.
struct Start {
  enum Kind { fresh, resume, full_state, parameters } kind = fresh;
  ModelSource source{ModelSource::checkpoint, {}};
  std::shared_ptr<Checkpoint> checkpoint;  // of resume and full_state, open; what was verified is not hashed again
  std::vector<std::string> notices;
};
/// Errors: E802 a folder of another configuration without a checkpoint; E204.
/// An own checkpoint that is not valid is named in a notice and passed over, never deleted; E402 if none is left.
/// check_bytes: all checksums count, not only sizes.
Start choose_start(const Config& config, const std::filesystem::path& run, bool check_bytes);

/// Checks a checkpoint against the run: E110 another architecture, E103 trained beyond `steps`, E310 changed data.
/// Returns one notice listing the other keys that changed, or none.
std::optional<std::string> check_resume(const CheckpointInfo& stored, const Config& config, const TrainingData& data);

/// Fills parameters, and for a checkpoint moments and counters. `fold`: stored q weights are divided by sqrt(D).
Progress restore(const Start& start, Stepper& stepper, bool fold);
/// Weights only, from a checkpoint or a Hugging Face folder. Errors: E402 to E405.
void load_weights(const ModelSource& source, Program& program, const LlamaConfig& model);

/// What tensors do not show: constants of the source's config.json that the model does not share. None: nothing.
std::optional<std::string> constants_that_differ(const ModelSource& source, const LlamaConfig& model);
/// Multiplies the q weights: by sqrt(D), a power of two, before a save under numerics=maxtext, and by its inverse
/// after.
void scale_queries(Stepper& stepper, float factor);

/// Everything of the state that a save writes; tensors point into the program.
CheckpointContent checkpoint_content(const Config& config, Stepper& stepper, const TrainingData& data,
                                     const Progress& progress);

}  // namespace nibble
