// Whether a run fits this machine's memory, asked before anything is allocated; if not, what would.
// Source: spec/training.md 7.2 (E107), spec/plan.md 3.
#pragma once
#include <string>
#include <vector>

#include "io/config.h"
#include "runtime/program.h"

namespace nibble {

/// The program of `nibble train` with this configuration: the step, evaluation where there is a set to evaluate on, and
/// decoding where samples are wanted. Allocates nothing of it.
ProgramPlan plan_run(const Config& config, int threads, CpuTarget target);
/// Row counts of the decoding executables that samples use.
const std::vector<int64_t>& sample_buckets();

/// memory_limit, or this machine's physical memory less 1 GiB.
int64_t memory_limit_of(const Config& config);

/// Of the copy that async_checkpointing writes from, weights and moments; 0 where the run makes none: saves between
/// steps, because the key says so or because arena and copy together pass memory_limit.
int64_t checkpoint_copy_bytes(const Config& config, const ProgramPlan& plan);

/// Words for the command line with which the run fits, and the bytes that it then needs.
struct Alternative {
  std::string words;
  int64_t bytes = 0;
};
/// Each was planned. More recomputation (remat_policy, unless it is auto); same global batch in smaller microbatches;
/// shorter rows; where weights, gradients and moments alone are too much, the largest packaged model that fits; the
/// limit itself, where memory_limit is lower than the machine's.
std::vector<Alternative> alternatives_that_fit(const Config& config, const ProgramPlan& plan);

/// Errors: E107 with the bytes needed and there, the table by class, the three largest tensors, and alternatives that
/// fit with the bytes that they need.
void check_fits(const Config& config, const ProgramPlan& plan);

}  // namespace nibble
