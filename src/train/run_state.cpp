#include "train/run_state.h"

#include <algorithm>
#include <cmath>

#include "core/hash.h"
#include "io/checkpoint_load.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// "key: old -> new" for every key whose JSON text differs; keys that one side lacks count.
std::vector<std::string> differences(const std::vector<std::pair<std::string, Json>>& stored,
                                     const std::vector<std::pair<std::string, std::string>>& now) {
  std::vector<std::string> list;
  for (const auto& [key, value] : now) {
    const auto old = std::ranges::find(stored, key, &std::pair<std::string, Json>::first);
    const std::string before = old == stored.end() ? "nothing" : old->second.dump();
    if (before != value && (old == stored.end() || old->second != Json::parse(value)))
      list.push_back(fmt::format("{}: {} -> {}", key, before, value));
  }
  return list;
}

std::string joined(const std::vector<std::string>& list, std::string_view separator = ", ") {
  return fmt::format("{}", fmt::join(list, separator));
}

std::vector<int64_t> dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

void check_folder(const Config& config, const fs::path& run) {
  const fs::path file = run / "config.yml";
  if (!fs::exists(file)) return;
  std::vector<std::pair<std::string, Json>> stored;
  const std::vector<std::string> none;
  ResolveOptions options;
  options.check = false, options.environment = &none;
  for (const auto& [key, value] : resolve({file.string()}, options).config.determining())
    stored.emplace_back(key, Json::parse(value));
  const std::vector<std::string> changed = differences(stored, config.determining());
  if (changed.empty()) return;
  throw Error("E802", "run folder {} belongs to another configuration and has no checkpoint to resume", run.string())
      .where("{}", joined(changed))
      .hint("run_name={}_2, or remove the folder", config.get_string("run_name"));
}

// What a checkpoint says of the recipe, file or not: one line a product, and when the run's end begins.
Json recipe_record(const StepConfig& c, int64_t step) {
  Json j = Json::object();
  if (!c.recipe.active()) return j;
  const auto products = [](const Recipe& r) {
    Json list = Json::object();
    for (const Gemm g : all_gemms) list[std::string(name_of(g))] = to_string(r.of(g));
    return list;
  };
  j = products(c.recipe);
  j["sites"] = c.recipe.sites == Sites::mlp ? "mlp" : "all";
  j["high_precision_layers"] = {c.recipe.first_high, c.recipe.last_high};
  if (c.finish) {
    j["finish"] = products(c.finish->recipe);
    j["finish"]["mode"] = c.finish->mode, j["finish"]["step"] = c.finish->step;
    j["finish"]["begun"] = step >= c.finish->step;
  }
  return j;
}

// "recipe/fprop: old -> new" of what differs.
std::vector<std::string> recipe_changes(const Json& stored, const Json& now) {
  std::vector<std::string> list;
  const Json before = stored.flatten(), after = now.flatten();
  for (const auto& item : after.items()) {
    if (item.key().ends_with("/begun")) continue;
    const std::string old = before.contains(item.key()) ? before.at(item.key()).dump() : "nothing";
    if (old != item.value().dump())
      list.push_back(fmt::format("recipe{}: {} -> {}", item.key(), old, item.value().dump()));
  }
  return list;
}

std::string data_change(const CheckpointInfo::DataFile& old, const std::vector<CheckpointInfo::DataFile>& now) {
  for (const auto& f : now)
    if (f.name == old.name)
      return fmt::format("{}: {} bytes, {} -> {} bytes, {}", f.name, old.bytes, hex16(old.hash), f.bytes,
                         hex16(f.hash));
  return fmt::format("{}: {} bytes, {} -> missing", old.name, old.bytes, hex16(old.hash));
}

}  // namespace

Start choose_start(const Config& config, const fs::path& run, bool check_bytes) {
  Start start;
  const std::string &full = config.get_string("load_full_state_path"),
                    &parameters = config.get_string("load_parameters_path");
  const std::vector<CheckpointEntry> list = list_checkpoints(run);
  for (auto entry = list.rbegin(); entry != list.rend(); ++entry) {
    std::string problem = entry->problem;
    if (problem.empty()) {
      start.checkpoint = std::make_shared<Checkpoint>(entry->path);
      const std::vector<Error> damage = check_bytes ? start.checkpoint->verify() : std::vector<Error>{};
      if (!damage.empty()) problem = damage[0].what_text;
    }
    if (!problem.empty()) {
      start.checkpoint = nullptr;
      start.notices.push_back(fmt::format("checkpoint {} is not valid ({}): an older one is used, nothing is deleted",
                                          entry->path.string(), problem));
      continue;
    }
    start.kind = Start::resume, start.source.path = entry->path;
    for (const std::string* unused : {&full, &parameters})
      if (!unused->empty())
        start.notices.push_back(fmt::format("{} is not used: the run has a checkpoint of its own", *unused));
    return start;
  }
  if (!list.empty())
    throw Error("E402", "no checkpoint of {} is valid", run.string())
        .where("{}", joined(start.notices, "; "))
        .hint("a good copy of one of them, or another run_name");
  check_folder(config, run);
  if (!full.empty()) {
    const ModelSource source = resolve_model(full);
    if (source.kind != ModelSource::checkpoint)
      throw Error("E204", "load_full_state_path={} is no checkpoint of nibble", full)
          .where("{}", source.path.string())
          .expected("a checkpoint or run folder", "a Hugging Face folder")
          .hint("load_parameters_path={}", full);
    start.kind = Start::full_state, start.source = source;
    start.checkpoint = std::make_shared<Checkpoint>(source.path);
  } else if (!parameters.empty()) {
    start.kind = Start::parameters, start.source = resolve_model(parameters);
  }
  return start;
}

std::optional<std::string> check_resume(const CheckpointInfo& stored, const Config& config, const TrainingData& data) {
  const std::vector<std::string> architecture = differences(stored.config, config.architecture());
  if (!architecture.empty())
    throw Error("E110", "the checkpoint holds another architecture: {}", joined(architecture))
        .where("step {}", stored.step)
        .hint("another run_name, or the old values");
  const int64_t steps = total_steps(config);
  if (stored.step > steps)
    throw Error("E103", "the run has completed {} steps, steps={}", stored.step, steps)
        .expected(fmt::format("steps of at least {}", stored.step), fmt::format("{}", steps))
        .hint("steps={}, or a new run_name", 2 * stored.step);
  const auto& fallback = config.get_list("allow_fallback");
  if (stored.data != data.fingerprints && std::ranges::find(fallback, "data_changed") == fallback.end()) {
    std::vector<std::string> changed;
    for (const auto& f : stored.data)
      if (std::ranges::find(data.fingerprints, f) == data.fingerprints.end())
        changed.push_back(data_change(f, data.fingerprints));
    if (changed.empty()) changed.push_back("the list of training files changed");
    throw Error("E310", "the training data changed since the checkpoint: {}", joined(changed))
        .where("step {}", stored.step)
        .hint("allow_fallback=[data_changed]: goes on at the same position of other data");
  }
  if (data.tokenizer && stored.tokenizer_hash != 0 && stored.tokenizer_hash != data.tokenizer->hash())
    throw Error("E310", "the tokenizer changed since the checkpoint: {} with hash {}, not {}", data.tokenizer->name(),
                hex16(data.tokenizer->hash()), hex16(stored.tokenizer_hash))
        .where("step {}", stored.step)
        .hint("the tokenizer files of the checkpoint, copied into the run folder");
  std::vector<std::string> changed = differences(stored.config, config.determining());
  if (!stored.recipe.empty())
    std::ranges::copy(recipe_changes(stored.recipe, recipe_record(step_of(config), stored.step)),
                      std::back_inserter(changed));
  if (changed.empty()) return std::nullopt;
  return "changed since the checkpoint: " + joined(changed);
}

void load_weights(const ModelSource& source, Program& program, const LlamaConfig& model) {
  std::vector<ParameterTarget> targets;
  for (const Parameter& p : llama_parameters(model))
    targets.push_back({p.name, dims_of(p.shape), program.state(StateRole::parameter, p.name).as<float>()});
  load_parameters(source, targets);
}

std::optional<std::string> constants_that_differ(const ModelSource& source, const LlamaConfig& model) {
  const LlamaConfig from = llama_of(load_shape(source));
  std::vector<std::string> list;
  const auto compare = [&](const char* name, double before, double now) {
    if (before != now) list.push_back(fmt::format("{} {}, here {}", name, before, now));
  };
  compare("normalization_layer_epsilon", from.eps, model.eps);
  compare("rope_max_timescale", from.rope.theta, model.rope.theta);
  if (from.rope.kind != model.rope.kind || from.rope.factor != model.rope.factor)
    list.push_back("another rope scaling");
  if (list.empty()) return std::nullopt;
  return fmt::format("the weights come from a model with {}", joined(list));
}

void scale_queries(Stepper& stepper, float factor) {
  for (const Parameter& p : stepper.parameters()) {
    if (p.name.find("self_attn.q_proj") == std::string::npos) continue;
    const Tensor w = stepper.program().state(StateRole::parameter, p.name);
    for (int64_t i = 0; i < w.numel(); ++i) w.as<float>()[i] *= factor;
  }
}

namespace {

// Delayed scales and their histories, under the names that a checkpoint gives them: "fp8_scale.layers.0/mlp/up_proj x".
template <class F>
void for_scales(Program& program, const F& f) {
  for (const StateInfo& s : program.plan().states)
    if (s.role == StateRole::fp8_scale || s.role == StateRole::fp8_history)
      f(fmt::format("{}.{}", name_of(s.role), s.name), program.state(s.role, s.name));
}

}  // namespace

Progress restore(const Start& start, Stepper& stepper, bool fold) {
  Progress progress;
  const float root = static_cast<float>(std::sqrt(static_cast<double>(stepper.config().model.head_size)));
  Program& program = stepper.program();
  if (start.kind == Start::parameters) {
    load_weights(start.source, program, stepper.config().model);
  } else {
    Checkpoint& checkpoint = *start.checkpoint;
    std::vector<TensorTarget> targets;
    for (const Parameter& p : stepper.parameters()) {
      targets.push_back({p.name, dims_of(p.shape), "F32", program.state(StateRole::parameter, p.name).data});
      for (const auto& [role, prefix] : {std::pair(StateRole::moment_m, "m."), std::pair(StateRole::moment_v, "v.")})
        if (program.has_state(role, p.name))
          targets.push_back({prefix + p.name, dims_of(p.shape), "F32", program.state(role, p.name).data});
    }
    bool needs_scales = false, has_scales = false;
    for_scales(program, [&](const std::string& name, const Tensor& t) {
      targets.push_back({name, dims_of(t.type.shape), "F32", t.data});
      needs_scales = true, has_scales = has_scales || checkpoint.find(name) != nullptr;
    });
    // One that lacks a part of the history is damaged; read() names what is missing.
    if (needs_scales && !has_scales)
      throw Error("E404", "{} has no history of delayed scales", start.source.path.string())
          .expected("the checkpoint of a run with this recipe", "one of another recipe")
          .hint("quantization=te_fp8_currentscaling needs no history; load_parameters_path={} begins a new run",
                start.source.path.string());
    checkpoint.read(targets);
    const CheckpointInfo& info = checkpoint.info();
    progress = {info.step, info.updates, info.position, info.tokens, info.skipped};
  }
  if (fold) scale_queries(stepper, 1 / root);
  return progress;
}

CheckpointContent checkpoint_content(const Config& config, Stepper& stepper, const TrainingData& data,
                                     const Progress& progress) {
  CheckpointContent c;
  Program& program = stepper.program();
  const LlamaConfig& model = stepper.config().model;
  c.step = progress.step, c.updates = progress.updates, c.position = progress.position, c.tokens = progress.tokens;
  c.skipped = progress.skipped, c.global_batch = global_batch(config);
  std::string canonical;
  for (const auto& [key, value] : config.determining()) {
    c.config.emplace_back(key, Json::parse(value));
    canonical += fmt::format("{}={}\n", key, value);
  }
  c.config_hash = xxh3(canonical);
  c.data = data.fingerprints;
  for (const Parameter& p : stepper.parameters()) {
    c.tensors.push_back({p.name, dims_of(p.shape), "F32", program.state(StateRole::parameter, p.name).data});
    for (const auto& [role, prefix] : {std::pair(StateRole::moment_m, "m."), std::pair(StateRole::moment_v, "v.")})
      if (program.has_state(role, p.name))
        c.state.push_back({prefix + p.name, dims_of(p.shape), "F32", program.state(role, p.name).data});
  }
  for_scales(program, [&](const std::string& name, const Tensor& t) {
    c.state.push_back({name, dims_of(t.type.shape), "F32", t.data});
  });
  for (int64_t i = 0; i < model.layers; ++i)
    for (const char* site : {"self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "self_attn/o_proj",
                             "mlp/gate_proj", "mlp/up_proj", "mlp/down_proj"})
      c.sites.push_back(fmt::format("layers.{}/{}", i, site));
  c.recipe = recipe_record(stepper.config(), progress.step);
  LlamaShape shape = hf_shape_of(model, stepper.config().microbatch.length);
  if (data.tokenizer) {
    const Tokenizer& t = *data.tokenizer;
    c.tokenizer_name = t.name(), c.tokenizer_hash = t.hash();
    c.tokenizer_files = t.files(stepper.config().microbatch.length);
    if (t.bos() >= 0) shape.bos = t.bos();
    if (t.eos() >= 0) shape.eos = {t.eos()};
    if (t.pad() >= 0) shape.pad = t.pad();
  }
  c.config_json = write_hf_config(shape);
  c.generation_config_json = write_generation_config(shape);
  Json run = Json::object();
  for (const char* key : {"run_name", "model_name", "steps", "per_device_batch_size", "threads", "cpu_target",
                          "base_output_directory", "train_files", "eval_files"})
    run[key] = Json::parse(config.json_of(key));
  c.run_info = run;
  return c;
}

}  // namespace nibble
