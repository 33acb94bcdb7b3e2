// One optimizer step on one machine: microbatches, gradient norm, finite gate, clip, update. The executables
// "microbatch", "gradient_norm", "update" and, for evaluation, "evaluate" over one arena.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "models/graphs.h"
#include "passes/quantize.h"
#include "runtime/program.h"
#include "train/optimizer.h"
#include "train/remat.h"

namespace nibble {

/// How a run ends: from optimizer step `step` on with another recipe (finish_high_precision).
struct Finish {
  std::string mode;  // "fwd_bf16"
  int64_t step = 0;
  Recipe recipe;
};

struct StepConfig {
  LlamaConfig model;
  OptimizerConfig optimizer;
  std::vector<bool> decayed;     // by parameter; empty: none
  BatchShape microbatch{1, 1};   // B, T
  int64_t accumulation = 1;      // GA
  BatchShape evaluation{0, 0};   // rows 0: no evaluation executable
  DType dtype = DType::f32;      // of activations and products; masters, gradients and moments are f32
  Recipe recipe;                 // of the linear layers
  std::optional<Finish> finish;  // another recipe at the end of the run
  uint32_t seed = 0;             // of the recipe's random bits
  double z_loss = 0;
  int64_t loss_tiles = 1;        // of tokens, at least; the same bits for any number
  RematPolicy remat;             // what the microbatch recomputes
  bool fused = true;             // passes/fuse; off to compare: no bit depends on it
  bool maxtext_divisor = false;  // N + 1e-8, or max(N, 1) with accumulation (spec/training.md 2.1)
};

/// The rows of a step or of an evaluation batch: arrays [rows, T]; weight 0 means the target does not count.
struct Rows {
  const int32_t *inputs, *targets, *segments, *positions;
  const float* weights;
  int64_t rows;
};

struct LossSum {
  double ce = 0, z = 0;  // sums over targets: cross entropy, z_loss * lse^2
  int64_t targets = 0;
  double loss() const { return (ce + z) / static_cast<double>(targets); }
};

struct StepResult {
  LossSum loss;
  double raw_norm = 0, norm = 0, param_norm = 0;  // before and after clipping; weights after the update
  bool updated = false;                           // false: the gate closed, no state was touched
  int64_t unscaled = 0;  // quantised copies that are all zeros for want of a scale: delayed and unused so far, or left out by name
};

/// What the gate found when it closed.
struct NonFinite {
  std::string tensor;  // "layers.3/mlp/up_proj linear, result 0" or "parameter model.norm.weight"
  int64_t index = 0;
  float value = 0;
};

/// What the recipe leaves in the run's dtype, and why: "7 linear layers: one of the last 1 layers".
/// Empty without a recipe.
std::vector<std::string> unquantized_sites(const StepConfig& c);

/// Plans the program of a job: nothing is allocated. "decode_<rows>" executables are added by `extra`. With a finish
/// there are two of what depends on the recipe: "microbatch" and "microbatch_finish", ...
ProgramPlan plan_training(const StepConfig& c, int threads, CpuTarget target, std::vector<NamedGraph> extra = {});

/// A program with the executable "evaluate" only: no gradients, no moments.
ProgramPlan plan_evaluation(const StepConfig& c, int threads, CpuTarget target);

class Stepper {
 public:
  /// Allocates the arena and fills the rope table; parameters and moments are zero.
  Stepper(const StepConfig& c, ProgramPlan plan);
  Program& program() { return *program_; }
  const StepConfig& config() const { return c_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  /// Whether what follows runs with StepConfig::finish. Weights, moments and random streams are the same for both.
  void finish(bool on) { finishing_ = on && c_.finish.has_value(); }

  /// Loss of GA * B rows; their gradient replaces what the gradient states hold. step: keys the recipe's random bits.
  /// Nothing allocates. Errors: E706, a quantiser made all zeros of values that are not.
  LossSum gradients(const Rows& rows, int64_t step = 0);
  /// One step on GA * B rows at rate lr as update number t (from 1). Nothing allocates.
  StepResult run(const Rows& rows, double lr, int64_t t);
  /// First non-finite element of a parameter or a moment: such a state is never saved.
  std::optional<NonFinite> non_finite_state() const;
  /// The linear layers and what the recipe does to each; empty without a recipe.
  const std::vector<QuantizedSite>& sites() const { return sites_; }
  /// After run() found something non-finite in update number t: runs the same rows again with every result checked.
  std::optional<NonFinite> find_non_finite(const Rows& rows, int64_t t);
  /// Loss of up to evaluation.rows rows; unused rows must be padding. same_weights: no weight changed since the last
  /// call, so they are not rounded and quantised again.
  LossSum evaluate(const Rows& rows, bool same_weights = false);

 private:
  void microbatch_inputs(Executable& x, const Rows& rows, int64_t first, int64_t count, float inv_n, int64_t step);
  void add_losses(Executable& x, const Rows& rows, int64_t first, int64_t count, LossSum& sum);
  float inverse_count(int64_t n) const;
  void round_weights(int64_t step);
  void forget_amaxes();
  // What runs once a step, a microbatch or an evaluation, before and after the switch; nullptr: there is none.
  struct Phase {
    Executable *microbatch, *recast, *advance_scales, *evaluate;
  };
  const Phase& phase() const { return phases_[finishing_ ? 1 : 0]; }
  Phase phase_of(const std::string& suffix);
  void require_codes(const Executable& x, int64_t step);
  StepConfig c_;
  std::vector<QuantizedSite> sites_;
  int64_t unscaled_ = 0;
  std::vector<Parameter> parameters_;
  std::unique_ptr<Program> program_;
  Phase phases_[2] = {};
  bool finishing_ = false;
};

/// A quantised copy by the node that made it: site "layers.3/mlp/up_proj", copy x, w, dy, or xt, wt, dyt (transposed).
struct QuantizedCopy {
  std::string site, copy;
};
QuantizedCopy copy_of(const Node& quantizer, int output, const std::vector<QuantizedSite>& sites);

/// Number of targets that count.
int64_t count_targets(const Rows& rows, int64_t length);

}  // namespace nibble
