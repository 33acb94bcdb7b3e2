// From gradient to weight: the graphs of the gradient norm and of the update, and the numbers of one step
// (spec/training.md 2.9).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/llama.h"

namespace nibble {

struct OptimizerConfig {
  enum class Kind { adamw, adam_pax, sgd } kind = Kind::adamw;
  double b1 = 0.9, b2 = 0.95, eps = 1e-8, eps_root = 0, weight_decay = 0.1;
  double clip = 1;  // gradient_clipping_threshold, 0 = off
};

/// Gradient states of each parameter (GradResult::states). Those of several uses are added last use first.
using GradientStates = std::map<std::string, std::vector<std::string>>;

/// "norm": f64 [1], the norm of all gradients.
Graph gradient_norm_graph(const std::vector<Parameter>& parameters, const GradientStates& gradients);
/// Input "scalars" f32 [update_scalars]; updates every parameter in place; output "param_norm" f64 [1], after the
/// update. decayed[i]: parameter i takes weight decay.
Graph update_graph(const OptimizerConfig& c, const std::vector<Parameter>& parameters, const GradientStates& gradients,
                   const std::vector<bool>& decayed);

/// The scalars of update number t >= 1 at rate lr with clip factor `clip`; f64 arithmetic, rounded once.
void fill_update_scalars(const OptimizerConfig& c, double lr, int64_t t, float clip, float* scalars);
/// fl32(threshold / norm) if norm > threshold > 0, else exactly 1.
float clip_factor(double threshold, double norm);

/// MaxText's path of a parameter ("params-decoder-layers-mlp-wi_0-kernel"), which masks may match as well.
std::string maxtext_path(const std::string& hf_name);
/// Which parameters are decayed: those that no pattern (ECMAScript regex, searched in both names) matches.
/// "norm" also names what Hugging Face calls layernorm; the default mask excludes exactly the 1-D parameters.
std::vector<bool> decay_mask(const std::vector<Parameter>& parameters, const std::vector<std::string>& mask);

}  // namespace nibble
