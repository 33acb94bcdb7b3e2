// The training loop: decides what happens at step n. Configuration to plan to data to weights to steps, with logs,
// evaluation, samples, checkpoints and stop signals at the step boundaries (spec/training.md 5, 6, 8).
#pragma once
#include <string>
#include <vector>

#include "io/config.h"

namespace nibble {

struct TrainOptions {
  bool quiet = false;    // warnings, errors and the end summary only
  bool verbose = false;  // plus kernels and files
  bool dry_run = false;  // stop after the checks of the outputs
  std::string log_file;
  std::vector<std::string> notices;  // of resolving the configuration
};

/// Runs, or resumes, the run that the configuration describes. Returns exit_done, or exit_stopped / exit_interrupted
/// after a stop signal. Errors: all of spec/training.md 7 that a single machine can meet.
int run_training(const Config& config, const TrainOptions& options);

}  // namespace nibble
