#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float_mode.h"
#include "graph/verify.h"
#include "ops/ops.h"
#include "passes/grad.h"
#include "plan/work.h"

namespace nibble {
namespace {

struct TrainingGraph {
  Graph graph;
  GradientStates gradients;
  std::vector<QuantizedSite> sites;
};

// Two recipes share the states of the codes that both make alike.
std::string_view other_codes(const StepConfig& c, const Recipe& recipe) {
  const auto alike = [&](Gemm g) { return !recipe.of(g).b.active() || recipe.of(g).b == c.recipe.of(g).b; };
  return alike(Gemm::fprop) && alike(Gemm::dgrad) ? "" : " finish";
}

TrainingGraph microbatch_graph(const StepConfig& c, const Recipe& recipe) {
  TrainingGraph t{llama_loss_graph(c.model, c.microbatch, c.z_loss, c.dtype, c.loss_tiles), {}, {}};
  verify(t.graph, "model");
  t.sites = quantized_sites(t.graph, recipe, other_codes(c, recipe));
  const Value ce = t.graph.output("ce");
  Builder b(t.graph);
  const Value seed = ones(b, t.graph.type(ce));
  t.gradients = grad(t.graph, {{ce, seed}}, {}).states;
  verify(t.graph, "grad");
  quantize(t.graph, t.sites);
  verify(t.graph, "quantize");
  return t;
}

// Evaluation, and what rounds and quantises the weights that it and the microbatches share. microbatch: nullptr
// without.
void add_evaluation(const StepConfig& c, const Recipe& recipe, const Graph* microbatch, const std::string& suffix,
                    std::vector<NamedGraph>& graphs) {
  std::vector<QuantizedSite> sites;
  std::vector<const Graph*> readers;
  Graph evaluation;
  if (c.evaluation.rows > 0) {
    evaluation = llama_loss_graph(c.model, c.evaluation, c.z_loss, c.dtype, c.loss_tiles);
    sites = quantized_sites(evaluation, recipe, other_codes(c, recipe));
    quantize(evaluation, sites, AmaxScope::row);
    verify(evaluation, "quantize");
    readers.push_back(&evaluation);
  }
  if (sites.empty())
    sites = quantized_sites(llama_loss_graph(c.model, c.microbatch, 0), recipe, other_codes(c, recipe));
  if (microbatch != nullptr) readers.insert(readers.begin(), microbatch);
  Graph weights = weights_graph(readers, sites);
  if (c.evaluation.rows > 0) graphs.push_back({"evaluate" + suffix, std::move(evaluation)});
  if (!weights.nodes.empty()) graphs.push_back({"recast" + suffix, std::move(weights)});
}

// All executables that depend on the recipe.
void add_phase(const StepConfig& c, const Recipe& recipe, const Graph& microbatch, const std::string& suffix,
               std::vector<NamedGraph>& graphs) {
  graphs.push_back({"microbatch" + suffix, microbatch});
  if (Graph scales = scales_graph(microbatch); !scales.nodes.empty())
    graphs.push_back({"advance_scales" + suffix, std::move(scales)});
  add_evaluation(c, recipe, &microbatch, suffix, graphs);
}

void fill_random(Executable& x, uint32_t seed, int64_t step, int64_t first_row) {
  if (!x.has_input("random")) return;
  auto* const words = x.input("random").as<int32_t>();
  words[0] = static_cast<int32_t>(seed), words[1] = static_cast<int32_t>(step);
  words[2] = static_cast<int32_t>(first_row), words[3] = 0;
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
  const bool quantizer = found.node->attrs.has("tensor");
  const std::string copy = quantizer ? " " + copy_of(*found.node, found.output, {}).copy : "";
  return fmt::format("{}{}{}, result {}", site, found.node->op->name, copy, found.output);
}

}  // namespace

int64_t count_targets(const Rows& rows, int64_t length) {
  int64_t n = 0;
  for (int64_t i = 0; i < rows.rows * length; ++i) n += rows.weights[i] != 0;
  return n;
}

std::vector<std::string> unquantized_sites(const StepConfig& c) {
  if (!c.recipe.active()) return {};
  std::vector<std::pair<std::string, int64_t>> reasons;  // each once, with the number of layers
  for (const QuantizedSite& s : quantized_sites(llama_loss_graph(c.model, {1, 1}, 0), c.recipe)) {
    if (s.why.empty()) continue;
    const auto known = std::ranges::find(reasons, s.why, &std::pair<std::string, int64_t>::first);
    if (known == reasons.end())
      reasons.emplace_back(s.why, 1);
    else
      ++known->second;
  }
  std::vector<std::string> list;
  for (const std::string& option : c.recipe.idle) list.push_back(option + " changes nothing in this recipe");
  for (const auto& [why, count] : reasons) list.push_back(fmt::format("{} linear layers: {}", count, why));
  list.emplace_back("head, embedding, attention, norms: by no recipe");
  return list;
}

QuantizedCopy copy_of(const Node& quantizer, int output, const std::vector<QuantizedSite>& sites) {
  QuantizedCopy c{quantizer.label, "w"};
  if (quantizer.op == &quantize_weight_op || quantizer.op == &quantize_weights_op) {  // labelled by its parameter
    if (const auto site = std::ranges::find(sites, quantizer.label, &QuantizedSite::weight); site != sites.end())
      c.site = site->label;
  } else {
    c.copy = quantizer.attrs.get_string("tensor");
  }
  if (output > 0 || !quantizer.attrs.has("row")) c.copy += "t";
  return c;
}

ProgramPlan plan_training(const StepConfig& c, int threads, CpuTarget target, std::vector<NamedGraph> extra) {
  const std::vector<Parameter> parameters = llama_parameters(c.model);
  const TrainingGraph microbatch = microbatch_graph(c, c.recipe);
  std::vector<NamedGraph> graphs;
  graphs.push_back(
      {"update", update_graph(c.optimizer, parameters, microbatch.gradients,
                              c.decayed.empty() ? std::vector<bool>(parameters.size(), false) : c.decayed)});
  graphs.push_back({"gradient_norm", gradient_norm_graph(parameters, microbatch.gradients)});
  add_phase(c, c.recipe, microbatch.graph, "", graphs);
  std::optional<TrainingGraph> finish;
  if (c.finish) {
    finish = microbatch_graph(c, c.finish->recipe);
    NIBBLE_CHECK(finish->gradients == microbatch.gradients, "another recipe has other gradients");
    add_phase(c, c.finish->recipe, finish->graph, std::string(finish_suffix), graphs);
  }
  for (NamedGraph& g : extra) graphs.push_back(std::move(g));
  ProgramPlan plan = plan_program(std::move(graphs), threads, target, c.fused);
  if (finish) apply_remat(c.remat, "microbatch" + std::string(finish_suffix), finish->graph, plan, c.fused);
  apply_remat(c.remat, "microbatch", microbatch.graph, plan, c.fused);  // last: what it did is what the plan reports
  return plan;
}

ProgramPlan plan_evaluation(const StepConfig& c, int threads, CpuTarget target) {
  std::vector<NamedGraph> graphs;
  add_evaluation(c, c.recipe, nullptr, "", graphs);
  return plan_program(std::move(graphs), threads, target);
}

Stepper::Stepper(const StepConfig& c, ProgramPlan plan)
    : c_(c),
      sites_(c.recipe.active() ? quantized_sites(llama_loss_graph(c.model, {1, 1}, 0), c.recipe)
                               : std::vector<QuantizedSite>{}),
      parameters_(llama_parameters(c.model)),
      program_(std::make_unique<Program>(std::move(plan))) {
  const Tensor table = program_->state(StateRole::constant, "rope_table");
  fill_rope_table(c.model.rope, c.model.head_size, 0, table.dim(0), table.as<float>());
  for (const StateInfo& s : program_->plan().states)
    if (s.role == StateRole::fp8_scale) program_->state(s.role, s.name).as<float>()[0] = 1;
  phases_[0] = phase_of("");
  if (c.finish) phases_[1] = phase_of(std::string(finish_suffix));
}

Stepper::Phase Stepper::phase_of(const std::string& suffix) {
  const auto find = [&](const std::string& name) {
    return program_->has_executable(name + suffix) ? &program_->executable(name + suffix) : nullptr;
  };
  return {find("microbatch"), find("recast"), find("advance_scales"), find("evaluate")};
}

float Stepper::inverse_count(int64_t n) const {
  double divisor = static_cast<double>(n);
  if (c_.maxtext_divisor) divisor = c_.accumulation == 1 ? divisor + 1e-8 : std::max(divisor, 1.0);
  return static_cast<float>(1 / divisor);
}

void Stepper::microbatch_inputs(Executable& x, const Rows& rows, int64_t first, int64_t count, float inv_n,
                                int64_t step) {
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
  fill_random(x, c_.seed, step, at);
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
void Stepper::round_weights(int64_t step) {
  if (phase().recast == nullptr) return;
  fill_random(*phase().recast, c_.seed, step, 0);
  phase().recast->run();
  require_codes(*phase().recast, step);
}

// All zeros where there were values: the product would be zero, and training would go on as if nothing had happened.
// Two cases are counted instead: a delayed scale that has seen no value yet, for it starts at 1
// (spec/precision.md 2.10), and recipe_disable=[two_level], which asks for S = 1 and so for this.
void Stepper::require_codes(const Executable& x, int64_t step) {
  for (const auto& [node, output] : x.blank()) {
    const bool transposed = output > 0 || !node->attrs.has("row");
    const QuantSpec spec = parse_quant_spec(node->attrs.get_string(transposed ? "column" : "row"));
    if (spec.tensor_scale == TensorScale::unit) {
      ++unscaled_;
      continue;
    }
    if (node->op == &quantize_op && node->in.size() > 2) {
      const Node& read = x.plan().graph.producer(node->in[2]);
      const Tensor history = program_->state(StateRole::fp8_history, read.attrs.get_string("name"));
      const float* const past = history.as<float>() + 1;
      if (std::all_of(past, past + history.numel() - 1, [](float a) { return a == 0; })) {
        ++unscaled_;
        continue;
      }
    }
    const auto [site, copy] = copy_of(*node, output, sites_);
    const std::string format(name_of(x.plan().graph.type(node->out[static_cast<size_t>(output)]).dtype));
    throw Error("E706", "step {}: the {} copy of {} at {} is all zeros, its values are not", step, format, copy, site)
        .where("{}, operand {}, step {}", site, copy, step)
        .expected("a code that is not zero", "zeros only")
        .hint(
            "values below the smallest scale of the format: larger initial weights, another recipe, or this layer in "
            "high precision (high_precision_first_layers, high_precision_last_layers)");
  }
}

LossSum Stepper::gradients(const Rows& rows, int64_t step) {
  const FloatMode mode;
  LossSum sum;
  unscaled_ = 0;
  round_weights(step);
  Executable& microbatch = *phase().microbatch;
  const float inv_n = inverse_count(count_targets(rows, c_.microbatch.length));
  for (int64_t j = 0; j < c_.accumulation; ++j) {
    microbatch_inputs(microbatch, rows, j * c_.microbatch.rows, c_.microbatch.rows, inv_n, step);
    microbatch.run(j == 0 ? Gradients::replace : Gradients::add);
    require_codes(microbatch, step);
    add_losses(microbatch, rows, j * c_.microbatch.rows, c_.microbatch.rows, sum);
  }
  return sum;
}

StepResult Stepper::run(const Rows& rows, double lr, int64_t t) {
  const FloatMode mode;
  StepResult result;
  result.loss = gradients(rows, t - 1);
  result.unscaled = unscaled_;
  Executable& gradient_norm = program_->executable("gradient_norm");
  gradient_norm.run();
  result.raw_norm = result.norm = gradient_norm.output("norm").as<double>()[0];
  if (!std::isfinite(result.loss.ce + result.loss.z) || !std::isfinite(result.raw_norm)) {
    forget_amaxes();
    return result;
  }
  const float clip = clip_factor(c_.optimizer.clip, result.raw_norm);
  result.norm = result.raw_norm * static_cast<double>(clip);
  Executable& update = program_->executable("update");
  fill_update_scalars(c_.optimizer, lr, t, clip, update.input("scalars").as<float>());
  update.run();
  if (phase().advance_scales != nullptr) phase().advance_scales->run();
  result.param_norm = update.output("param_norm").as<double>()[0];
  result.updated = true;
  return result;
}

// A step that did not count leaves no trace in the histories.
void Stepper::forget_amaxes() {
  for (const StateInfo& s : program_->plan().states)
    if (s.role == StateRole::fp8_history) program_->state(s.role, s.name).as<float>()[0] = 0;
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

std::optional<NonFinite> Stepper::find_non_finite(const Rows& rows, int64_t t) {
  if (auto found = non_finite_state()) return found;
  round_weights(t - 1);
  Executable& microbatch = *phase().microbatch;
  const float inv_n = inverse_count(count_targets(rows, c_.microbatch.length));
  for (int64_t j = 0; j < c_.accumulation; ++j) {
    microbatch_inputs(microbatch, rows, j * c_.microbatch.rows, c_.microbatch.rows, inv_n, t - 1);
    Executable::NonFinite found;
    if (!microbatch.run_checked(&found, j == 0 ? Gradients::replace : Gradients::add))
      return forget_amaxes(), NonFinite{describe(found), found.index, found.value};
  }
  forget_amaxes();
  return std::nullopt;
}

LossSum Stepper::evaluate(const Rows& rows, bool same_weights) {
  const FloatMode mode;
  Executable& x = *phase().evaluate;
  LossSum sum;
  if (!same_weights) round_weights(0);
  microbatch_inputs(x, rows, 0, rows.rows, 1.0f, 0);
  x.run();
  require_codes(x, 0);
  add_losses(x, rows, 0, rows.rows, sum);
  return sum;
}

}  // namespace nibble
