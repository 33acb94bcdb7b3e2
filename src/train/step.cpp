#include "train/step.h"

#include <cmath>
#include <cstring>

#include "graph/verify.h"
#include "passes/grad.h"

namespace nibble {
namespace {

struct TrainingGraph {
  Graph graph;
  GradientStates gradients;
};

TrainingGraph microbatch_graph(const StepConfig& c) {
  TrainingGraph t{llama_loss_graph(c.model, c.microbatch, c.z_loss, c.dtype, c.loss_tiles), {}};
  verify(t.graph, "model");
  const Value ce = t.graph.output("ce");
  Builder b(t.graph);
  const Value seed = ones(b, t.graph.type(ce));
  t.gradients = grad(t.graph, {{ce, seed}}, {}).states;
  verify(t.graph, "grad");
  return t;
}

// With a rounded dtype also what rounds the weights, which evaluation and microbatches share.
void add_evaluation(const StepConfig& c, std::vector<NamedGraph>& graphs) {
  if (c.evaluation.rows > 0)
    graphs.push_back({"evaluate", llama_loss_graph(c.model, c.evaluation, c.z_loss, c.dtype, c.loss_tiles)});
  if (c.dtype != DType::f32) graphs.push_back({"recast", recast_graph(c.model, c.dtype)});
}

// FP64 lane sum over the positions of a row (spec/training.md 2.11).
template <class F>
double row_sum(int64_t length, const F& term) {
  double lane[16] = {};
  for (int64_t i = 0; i < length; ++i) lane[i % 16] += term(i);
  for (int h = 8; h >= 1; h /= 2)
    for (int i = 0; i < h; ++i) lane[i] += lane[i + h];
  return lane[0];
}

std::string describe(const Executable::NonFinite& found) {
  const std::string site = found.node->label.empty() ? "" : found.node->label + " ";
  return fmt::format("{}{}, result {}", site, found.node->op->name, found.output);
}

}  // namespace

int64_t count_targets(const Rows& rows, int64_t length) {
  int64_t n = 0;
  for (int64_t i = 0; i < rows.rows * length; ++i) n += rows.weights[i] != 0;
  return n;
}

ProgramPlan plan_training(const StepConfig& c, int threads, CpuTarget target, std::vector<NamedGraph> extra) {
  const std::vector<Parameter> parameters = llama_parameters(c.model);
  TrainingGraph microbatch = microbatch_graph(c);
  std::vector<NamedGraph> graphs;
  graphs.push_back(
      {"update", update_graph(c.optimizer, parameters, microbatch.gradients,
                              c.decayed.empty() ? std::vector<bool>(parameters.size(), false) : c.decayed)});
  graphs.push_back({"gradient_norm", gradient_norm_graph(parameters, microbatch.gradients)});
  graphs.push_back({"microbatch", microbatch.graph});
  add_evaluation(c, graphs);
  for (NamedGraph& g : extra) graphs.push_back(std::move(g));
  ProgramPlan plan = plan_program(std::move(graphs), threads, target, c.fused);
  apply_remat(c.remat, microbatch.graph, plan, c.fused);
  return plan;
}

ProgramPlan plan_evaluation(const StepConfig& c, int threads, CpuTarget target) {
  std::vector<NamedGraph> graphs;
  add_evaluation(c, graphs);
  return plan_program(std::move(graphs), threads, target);
}

Stepper::Stepper(const StepConfig& c, ProgramPlan plan)
    : c_(c), parameters_(llama_parameters(c.model)), program_(std::make_unique<Program>(std::move(plan))) {
  const Tensor table = program_->state(StateRole::constant, "rope_table");
  fill_rope_table(c.model.rope, c.model.head_size, 0, table.dim(0), table.as<float>());
}

float Stepper::inverse_count(int64_t n) const {
  double divisor = static_cast<double>(n);
  if (c_.maxtext_divisor) divisor = c_.accumulation == 1 ? divisor + 1e-8 : std::max(divisor, 1.0);
  return static_cast<float>(1 / divisor);
}

void Stepper::microbatch_inputs(Executable& x, const Rows& rows, int64_t first, int64_t count, float inv_n) {
  const Tensor tokens = x.input("tokens"), targets = x.input("targets");
  const int64_t length = tokens.dim(1), at = first * length, n = count * length, all = tokens.numel();
  const auto copy = [&](const Tensor& to, const int32_t* from) {
    std::memcpy(to.data, from + at, static_cast<size_t>(n) * 4);
    std::memset(to.as<int32_t>() + n, 0, static_cast<size_t>(all - n) * 4);  // unused rows are padding
  };
  copy(tokens, rows.inputs), copy(x.input("segments"), rows.segments), copy(x.input("positions"), rows.positions);
  for (int64_t i = 0; i < all; ++i)
    targets.as<int32_t>()[i] = i < n && rows.weights[at + i] != 0 ? rows.targets[at + i] : -1;
  x.input("inv_n").as<float>()[0] = inv_n;
}

void Stepper::add_losses(Executable& x, const Rows& rows, int64_t first, int64_t count, LossSum& sum) {
  const Tensor ce = x.output("ce"), lse = x.output("lse");
  const int64_t length = ce.dim(1);
  const auto z = static_cast<float>(c_.z_loss);
  for (int64_t r = 0; r < count; ++r) {
    const float *row_ce = ce.as<float>() + r * length, *row_lse = lse.as<float>() + r * length;
    sum.ce += row_sum(length, [&](int64_t i) { return static_cast<double>(row_ce[i]); });
    if (z != 0) sum.z += row_sum(length, [&](int64_t i) { return static_cast<double>(z * (row_lse[i] * row_lse[i])); });
    for (int64_t i = 0; i < length; ++i) sum.targets += rows.weights[(first + r) * length + i] != 0;
  }
}

// Once an optimizer step: its microbatches share the weights.
void Stepper::round_weights() {
  if (c_.dtype != DType::f32) program_->executable("recast").run();
}

LossSum Stepper::gradients(const Rows& rows) {
  LossSum sum;
  round_weights();
  Executable& microbatch = program_->executable("microbatch");
  const float inv_n = inverse_count(count_targets(rows, c_.microbatch.length));
  for (int64_t j = 0; j < c_.accumulation; ++j) {
    microbatch_inputs(microbatch, rows, j * c_.microbatch.rows, c_.microbatch.rows, inv_n);
    microbatch.run(j == 0 ? Gradients::replace : Gradients::add);
    add_losses(microbatch, rows, j * c_.microbatch.rows, c_.microbatch.rows, sum);
  }
  return sum;
}

StepResult Stepper::run(const Rows& rows, double lr, int64_t t) {
  StepResult result;
  result.loss = gradients(rows);
  Executable& gradient_norm = program_->executable("gradient_norm");
  gradient_norm.run();
  result.raw_norm = result.norm = gradient_norm.output("norm").as<double>()[0];
  if (!std::isfinite(result.loss.ce + result.loss.z) || !std::isfinite(result.raw_norm)) return result;
  const float clip = clip_factor(c_.optimizer.clip, result.raw_norm);
  result.norm = result.raw_norm * static_cast<double>(clip);
  Executable& update = program_->executable("update");
  fill_update_scalars(c_.optimizer, lr, t, clip, update.input("scalars").as<float>());
  update.run();
  result.param_norm = update.output("param_norm").as<double>()[0];
  result.updated = true;
  return result;
}

std::optional<NonFinite> Stepper::non_finite_state() const {
  constexpr std::pair<StateRole, const char*> kinds[] = {{StateRole::parameter, "parameter "},
                                                         {StateRole::moment_m, "moment m of "},
                                                         {StateRole::moment_v, "moment v of "}};
  for (const auto& [role, kind] : kinds)
    for (const Parameter& p : parameters_) {
      if (!program_->has_state(role, p.name)) continue;
      const Tensor w = program_->state(role, p.name);
      for (int64_t i = 0; i < w.numel(); ++i)
        if (!std::isfinite(w.as<float>()[i])) return NonFinite{kind + p.name, i, w.as<float>()[i]};
    }
  return std::nullopt;
}

std::optional<NonFinite> Stepper::find_non_finite(const Rows& rows) {
  if (auto found = non_finite_state()) return found;
  round_weights();
  Executable& microbatch = program_->executable("microbatch");
  const float inv_n = inverse_count(count_targets(rows, c_.microbatch.length));
  for (int64_t j = 0; j < c_.accumulation; ++j) {
    microbatch_inputs(microbatch, rows, j * c_.microbatch.rows, c_.microbatch.rows, inv_n);
    Executable::NonFinite found;
    if (!microbatch.run_checked(&found, j == 0 ? Gradients::replace : Gradients::add))
      return NonFinite{describe(found), found.index, found.value};
  }
  return std::nullopt;
}

LossSum Stepper::evaluate(const Rows& rows) {
  Executable& x = program_->executable("evaluate");
  LossSum sum;
  round_weights();
  microbatch_inputs(x, rows, 0, rows.rows, 1.0f);
  x.run();
  add_losses(x, rows, 0, rows.rows, sum);
  return sum;
}

}  // namespace nibble
