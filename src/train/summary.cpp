#include "train/summary.h"

#include <map>

#include "core/hash.h"
#include "ops/ops.h"
#include "plan/flops.h"
#include "train/metrics.h"
#include "train/model_setup.h"

namespace nibble {

std::vector<std::string> slow_quantized_ops(const ProgramPlan& plan) {
  if (plan.target == CpuTarget::ref) return {};
  std::map<std::string, int64_t> nodes;  // by op and reason
  for (const ExecutablePlan& e : plan.executables)
    for (size_t i = 0; i < e.graph.nodes.size(); ++i) {
      const Node& n = e.graph.nodes[i];
      const KernelChoice& k = e.kernels[i];
      const auto quantized = [&](Value v) { return is_quantized(e.graph.type(v).dtype); };
      const bool one_number = n.op == &record_amax_op;
      if (k.run != nullptr && k.name == "ref" && !one_number &&
          (std::ranges::any_of(n.in, quantized) || std::ranges::any_of(n.out, quantized)))
        ++nodes[fmt::format("{} on {} ({})", n.op->name, k.name,
                            k.refusals.empty() ? "it has no other kernel" : k.refusals)];
    }
  std::vector<std::string> list;
  for (const auto& [text, count] : nodes) list.push_back(fmt::format("{} x {}", count, text));
  return list;
}

void print_summary(Console& console, const Config& config, const StepConfig& step, const ProgramPlan& plan,
                   const TrainingData& data, const Schedule& schedule, const std::filesystem::path& run) {
  const auto say = [&console](const std::string& text) { console.line(text); };
  const int64_t rows = global_batch(config), tokens = rows * step.microbatch.length, steps = total_steps(config);
  say(
      fmt::format("global batch {} = per_device_batch_size {} x devices 1 x accumulation {}; {} tokens/step; {} steps "
                  "= {:.2f} M tokens",
                  rows, config.json_of("per_device_batch_size"), step.accumulation, tokens, steps,
                  static_cast<double>(tokens * steps) / 1e6));
  const std::vector<Parameter> parameters = llama_parameters(step.model);
  say(fmt::format("number parameters: {:.3f} billion", static_cast<double>(parameter_count(step.model)) / 1e9));
  const StepFlops flops = maxtext_flops(step.model, step.microbatch.rows, step.microbatch.length, step.accumulation);
  say(fmt::format(
      "Per train step: Total TFLOPs: {:.4f} (split as {:.2f}% learnable weight flops and {:.2f}% attention flops)",
      flops.total() / 1e12, 100 * flops.weights / flops.total(), 100 * flops.attention / flops.total()));
  std::map<StateRole, int64_t> by_role;
  for (const StateInfo& s : plan.states) by_role[s.role] += align_up(s.type.nbytes());
  say(fmt::format("memory: {} = weights {}, gradients {}, optimizer {}, activations and workspace {}",
                  bytes_text(plan.arena_bytes()),
                  bytes_text(by_role[StateRole::parameter] + by_role[StateRole::weight] + by_role[StateRole::codes] +
                             by_role[StateRole::codes_transposed] + by_role[StateRole::fp8_scale] +
                             by_role[StateRole::fp8_history]),
                  bytes_text(by_role[StateRole::gradient]),
                  bytes_text(by_role[StateRole::moment_m] + by_role[StateRole::moment_v]),
                  bytes_text(plan.temporary_bytes)));
  int64_t decayed = 0, decayed_tensors = 0, tensors = static_cast<int64_t>(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    if (step.decayed[i]) decayed += parameters[i].shape.numel(), ++decayed_tensors;
  std::string precision = step.dtype == DType::bf16
                              ? "bfloat16 operands and activations, float32 sums, masters and optimizer"
                              : "float32 in every product";
  if (step.recipe.active()) precision = fmt::format("{} in linear layers, elsewhere {}", step.recipe.name, precision);
  say(fmt::format("precision: {}; weight decay {} on {} tensors ({} parameters), none on {} ({})", precision,
                  config.json_of("adam_weight_decay"), decayed_tensors, decayed, tensors - decayed_tensors,
                  parameter_count(step.model) - decayed));
  say(fmt::format("schedule: {} over {} steps, {} of warm-up, peak {}", config.get_string("lr_schedule_type"),
                  schedule.length, schedule.warmup, config.json_of("learning_rate")));
  if (step.recipe.active() && step.recipe.first_high + step.recipe.last_high >= step.model.layers)
    console.notice("every layer stays in high precision: nothing is quantized");
  if (step.finish) {
    console.notice(fmt::format("{}{}", finish_text(*step.finish),
                               step.finish->step >= steps ? ": after the last step, so never"
                               : step.finish->mode == "fwd_bf16"
                                   ? ": what this gains is lost again where the weights are served in 4 bits"
                                   : ""));
  }
  for (const std::string& option : step.recipe.idle) console.notice(option + " changes nothing in this recipe");
  for (const std::string& slow : slow_quantized_ops(plan)) console.notice("slow, with the same bits: " + slow);
  if (schedule.warmup > schedule.length)
    console.notice("the warm-up is longer than the schedule: the peak rate is never reached");
  if (schedule.length < steps)
    console.notice(fmt::format("the rate is 0 from step {} on: learning_rate_schedule_steps is below steps={}",
                               schedule.length, steps));
  const DataReport d = data.train->report();
  say(fmt::format("data: {} rows of {} tokens from {} documents, {} tokens, longest document {}, padding {:.2f}%{}",
                  d.rows, step.microbatch.length, d.documents, d.tokens, d.longest_document, 100 * d.padding_share,
                  data.tokenizer ? ", tokenizer " + data.tokenizer->name() : ""));
  if (data.evaluation) {
    const DataReport e = data.evaluation->report();
    say(fmt::format("evaluation: {} rows, {} targets, {} bytes", e.rows, e.targets, e.source_bytes));
  }
  for (const std::string& n : data.notices) console.notice(n);
  say(fmt::format("cpu: kernels {}, {} threads", name_of(plan.target), plan.threads));
  say(fmt::format("run folder: {} (config {})", run.string(), hex16(config.hash())));
  if (config.get_bool("log_config")) say(config.yaml());
}

void print_kernels(Console& console, const ProgramPlan& plan) {
  std::map<std::string, std::string> lines;
  for (const ExecutablePlan& e : plan.executables)
    for (size_t i = 0; i < e.graph.nodes.size(); ++i) {
      const KernelChoice& k = e.kernels[i];
      if (k.run != nullptr)
        lines[std::string(e.graph.nodes[i].op->name)] =
            fmt::format("{}{}{}", k.name, k.refusals.empty() ? "" : "; refused: ", k.refusals);
    }
  for (const auto& [op, text] : lines) console.line(fmt::format("kernel {}: {}", op, text));
}

}  // namespace nibble
