#include "train/model_setup.h"

#include <cmath>
#include <thread>

#include "numerics/normal.h"
#include "train/recipe_file.h"

namespace nibble {

// Compiled per target in kernels/cpu/init_normal.cpp; both give the bits of numerics/normal.h.
namespace avx2 {
void init_normal(float* out, int64_t first, int64_t count, uint32_t seed, uint32_t name_hash, double std,
                 bool truncated);
}
namespace avx512 {
void init_normal(float* out, int64_t first, int64_t count, uint32_t seed, uint32_t name_hash, double std,
                 bool truncated);
}

namespace {

RopeConfig rope_of(const Config& config) {
  RopeConfig rope;
  rope.theta = config.get_double("rope_max_timescale");
  const std::string& type = config.get_string("rope_type");
  const double linear = config.get_double("rope_linear_scaling_factor");
  const auto factor = [&](double otherwise) {
    return config.is_null("rope_factor") ? otherwise : config.get_double("rope_factor");
  };
  const auto original = [&](int64_t otherwise) {
    return config.is_null("original_max_position_embeddings") ? otherwise
                                                              : config.get_int("original_max_position_embeddings");
  };
  if (type == "llama3.1" && config.get_bool("rope_use_scale")) {
    rope.kind = RopeConfig::Kind::llama3;
    rope.factor = factor(8), rope.original = original(8192);
    rope.low = config.get_double("rope_low_freq_factor"), rope.high = config.get_double("rope_high_freq_factor");
  } else if (type == "yarn") {
    rope.kind = RopeConfig::Kind::yarn;
    rope.factor = factor(40), rope.original = original(4096);
    rope.beta_fast = config.get_double("beta_fast"), rope.beta_slow = config.get_double("beta_slow");
    rope.truncate = config.get_bool("rope_truncate"),
    rope.attention_scaling = config.get_bool("rope_attention_scaling");
  } else if (linear != 1) {
    rope.kind = RopeConfig::Kind::linear;
    rope.factor = linear;
  }
  return rope;
}

}  // namespace

bool folds_scores(const Config& config) { return config.get_string("numerics") == "maxtext"; }

LlamaConfig llama_of(const Config& config) {
  LlamaConfig m;
  m.layers = config.get_int("base_num_decoder_layers"), m.width = config.get_int("base_emb_dim");
  m.heads = config.get_int("base_num_query_heads"), m.kv_heads = config.get_int("base_num_kv_heads");
  m.head_size = config.get_int("head_dim"), m.hidden = config.get_int("base_mlp_dim"),
  m.vocab = config.get_int("vocab_size");
  m.max_positions = config.is_null("max_position_embeddings") ? 0 : config.get_int("max_position_embeddings");
  m.window = config.get_int("sliding_window_size");
  m.eps = config.get_double("normalization_layer_epsilon");
  m.tied = config.get_bool("logits_via_embedding");
  if (folds_scores(config)) m.score_scale = 1;
  if (m.tied && config.get_bool("normalize_embedding_logits"))
    m.head_scale = 1 / std::sqrt(static_cast<double>(m.width));
  m.rope = rope_of(config);
  return m;
}

LlamaConfig llama_of(const LlamaShape& s) {
  LlamaConfig m{.layers = s.layers,
                .width = s.width,
                .heads = s.heads,
                .kv_heads = s.kv_heads,
                .head_size = s.head_size,
                .hidden = s.hidden,
                .vocab = s.vocab,
                .max_positions = s.max_positions,
                .window = s.window,
                .eps = s.eps,
                .tied = s.tied};
  m.rope.theta = s.theta;
  m.rope.factor = s.rope.factor, m.rope.low = s.rope.low, m.rope.high = s.rope.high, m.rope.original = s.rope.original;
  if (s.rope.type == "linear") m.rope.kind = RopeConfig::Kind::linear;
  if (s.rope.type == "llama3") m.rope.kind = RopeConfig::Kind::llama3;
  if (s.rope.type == "yarn") {
    m.rope.kind = RopeConfig::Kind::yarn;
    m.rope.beta_fast = s.rope.beta_fast, m.rope.beta_slow = s.rope.beta_slow;
    m.rope.truncate = s.rope.truncate, m.rope.attention_scaling = s.rope.attention_scaling;
  }
  return m;
}

LlamaShape hf_shape_of(const LlamaConfig& m, int64_t max_positions) {
  LlamaShape s;
  s.layers = m.layers, s.width = m.width, s.heads = m.heads, s.kv_heads = m.kv_heads, s.head_size = m.head_size;
  s.hidden = m.hidden, s.vocab = m.vocab, s.max_positions = m.max_positions > 0 ? m.max_positions : max_positions;
  s.window = m.window;
  s.eps = m.eps, s.theta = m.rope.theta, s.tied = m.tied;
  if (m.rope.kind == RopeConfig::Kind::linear) s.rope.type = "linear", s.rope.factor = m.rope.factor;
  if (m.rope.kind == RopeConfig::Kind::llama3)
    s.rope.type = "llama3", s.rope.factor = m.rope.factor, s.rope.low = m.rope.low, s.rope.high = m.rope.high,
    s.rope.original = m.rope.original;
  if (m.rope.kind == RopeConfig::Kind::yarn) {
    s.rope.type = "yarn", s.rope.factor = m.rope.factor, s.rope.original = m.rope.original;
    s.rope.beta_fast = m.rope.beta_fast, s.rope.beta_slow = m.rope.beta_slow;
    s.rope.truncate = m.rope.truncate, s.rope.attention_scaling = m.rope.attention_scaling;
  }
  return s;
}

OptimizerConfig optimizer_of(const Config& config) {
  OptimizerConfig o;
  const std::string& type = config.get_string("opt_type");
  o.kind = type == "sgd"        ? OptimizerConfig::Kind::sgd
           : type == "adam_pax" ? OptimizerConfig::Kind::adam_pax
                                : OptimizerConfig::Kind::adamw;
  o.b1 = config.get_double("adam_b1"), o.b2 = config.get_double("adam_b2");
  o.eps = config.get_double("adam_eps"), o.eps_root = config.get_double("adam_eps_root");
  o.weight_decay = config.get_double("adam_weight_decay");
  o.clip = config.get_double("gradient_clipping_threshold");
  return o;
}

Schedule schedule_of(const Config& config) {
  Schedule s;
  const std::string& type = config.get_string("lr_schedule_type");
  s.kind = type == "wsd"        ? Schedule::Kind::wsd
           : type == "constant" ? Schedule::Kind::constant
           : type == "linear"   ? Schedule::Kind::linear
                                : Schedule::Kind::cosine;
  s.peak = config.get_double("learning_rate"), s.final_fraction = config.get_double("learning_rate_final_fraction");
  s.length = schedule_steps(config);
  s.warmup = config.get_int("warmup_steps") >= 0
                 ? config.get_int("warmup_steps")
                 : warmup_from_fraction(s.length, config.get_double("warmup_steps_fraction"));
  s.decay_fraction = config.get_double("wsd_decay_steps_fraction");
  s.cosine_decay = config.get_string("wsd_decay_style") == "cosine";
  return s;
}

Recipe recipe_of(const Config& config, int64_t layers) {
  const std::string &name = config.get_string("quantization"), &file = config.get_string("recipe_file");
  if (name.empty() && file.empty()) return {};
  if (file.empty() && name == "auto")
    throw Error("E102", "quantization=auto chooses a recipe for training, and nothing is trained here")
        .where("{}", config.origin("quantization"))
        .hint("quantization=te_nvfp4, or another recipe by its name");
  RecipeOptions o;
  o.disable = config.get_list("recipe_disable");
  o.sites = config.get_string("quantize_sites") == "mlp" ? Sites::mlp : Sites::all;
  o.sr_vmax = std::ranges::count(config.get_list("recipe_addons"), "sr_vmax") > 0;
  o.blackwell = config.get_string("gemm_accumulation") == "blackwell";
  const auto count = [&](std::string_view key) -> std::optional<int64_t> {
    if (config.json_of(key) == "\"auto\"") return std::nullopt;
    return config.get_int(key);
  };
  o.first_high = count("high_precision_first_layers"), o.last_high = count("high_precision_last_layers");
  o.pow2 = config.get_string("tensor_scale") == "pow2";
  std::optional<Recipe> recipe;
  const std::string_view key_of_recipe = file.empty() ? "quantization" : "recipe_file";
  if (!file.empty()) {
    recipe = read_recipe_file(file, layers).recipe;
    if (!config.is_explicit("quantize_sites")) o.sites = recipe->sites;
  }
  try {
    recipe = recipe ? with_options(*recipe, o) : recipe_of(name, layers, o);
  } catch (Error& e) {
    e.where_text = fmt::format("{} from {}", key_of_recipe, config.origin(key_of_recipe));
    for (const std::string_view key : {"recipe_disable", "recipe_addons", "tensor_scale", "gemm_accumulation",
                                       "high_precision_first_layers", "high_precision_last_layers"})
      if (config.is_explicit(key))
        e.where_text += fmt::format(", {}={} from {}", key, config.json_of(key), config.origin(key));
    throw;
  }
  NIBBLE_CHECK(recipe.has_value(), "no recipe {}", name);
  if (recipe->active() && recipe->first_high + recipe->last_high >= layers)
    throw Error("E502", "{} quantises nothing: the first {} and the last {} of {} layers stay in high precision",
                recipe->name, recipe->first_high, recipe->last_high, layers)
        .where("{} from {}", key_of_recipe, config.origin(key_of_recipe))
        .expected(fmt::format("high_precision_first_layers and high_precision_last_layers of less than {} together", layers),
                  fmt::format("{}", recipe->first_high + recipe->last_high))
        .hint("{}", o.first_high || o.last_high ? "fewer of them, or quantization=\"\"" : "recipe_disable=[high_precision]");
  return *recipe;
}

std::optional<Finish> finish_of(const Config& config, const Recipe& recipe) {
  std::string mode = config.get_string("finish_high_precision"), start = config.json_of("finish_high_precision_start"),
              where = fmt::format("finish_high_precision from {}", config.origin("finish_high_precision"));
  if (const std::string& file = config.get_string("recipe_file"); !file.empty()) {
    const RecipeFile own = read_recipe_file(file, 1);
    if (!config.is_explicit("finish_high_precision") && !own.finish.empty()) mode = own.finish, where = file;
    if (!config.is_explicit("finish_high_precision_start") && own.finish_start)
      start = std::to_string(*own.finish_start);
  }
  if (mode == "off" || !recipe.active()) return std::nullopt;
  Finish finish{mode, 0, {}};
  try {
    finish.recipe = finished(recipe, mode);
  } catch (Error& e) {
    e.where_text = where;
    throw;
  }
  if (start != "\"decay\"") {
    finish.step = std::stoll(start);
    return finish;
  }
  const std::optional<int64_t> decay = schedule_of(config).first_decay_step();
  if (!decay)
    throw Error("E102",
                "finish_high_precision={} begins with the decay of the learning rate, and a constant one has none",
                mode)
        .where("{}, lr_schedule_type from {}", where, config.origin("lr_schedule_type"))
        .expected("lr_schedule_type wsd, cosine or linear, or a step", "constant")
        .hint("finish_high_precision_start={}", total_steps(config) * 9 / 10);
  finish.step = *decay;
  return finish;
}

std::string finish_text(const Finish& finish) {
  return fmt::format("finish_high_precision={} from step {} on", finish.mode, finish.step);
}

std::string precision_text(const Config& config) {
  const std::string &name = config.get_string("quantization"), &file = config.get_string("recipe_file");
  if (!file.empty()) return fmt::format("{}, recipe {}", config.get_string("dtype"), file);
  return config.get_string("dtype") + (name.empty() ? "" : ", " + name);
}

AutoRecipe auto_recipe(CpuTarget target, int64_t width) {
  constexpr int64_t narrow = 256;
  if (target == CpuTarget::ref) return {"", "the reference kernels multiply 4-bit operands one by one"};
  if (width < narrow)
    return {"", fmt::format("the model's width {} is below {}: what smaller products save, quantising costs", width,
                            narrow)};
  return {"te_nvfp4",
          fmt::format("integer products of 4-bit operands ({} kernels) are the fastest here; how much, and for which "
                      "loss: docs/quantization.md",
                      name_of(target))};
}

Config with_auto_recipe(const Config& config, const std::optional<std::string>& of_run, std::string* line) {
  line->clear();
  if (config.get_string("quantization") != "auto") return config;
  AutoRecipe pick = auto_recipe(resolve_target(config.get_string("cpu_target")), config.get_int("base_emb_dim"));
  if (of_run) pick = {*of_run, "the run began with it"};
  *line = fmt::format("quantization=auto: {}; {}", pick.name.empty() ? "no recipe" : pick.name, pick.why);
  return config.with("quantization", pick.name.empty() ? "\"\"" : pick.name, "auto");
}

StepConfig step_of(const Config& config) {
  StepConfig c;
  c.model = llama_of(config);
  c.optimizer = optimizer_of(config);
  c.accumulation = config.get_int("gradient_accumulation_steps");
  c.microbatch = {global_batch(config) / c.accumulation, config.get_int("max_target_length")};
  const std::vector<Parameter> parameters = llama_parameters(c.model);
  const bool sgd = c.optimizer.kind == OptimizerConfig::Kind::sgd;
  c.decayed = sgd ? std::vector<bool>(parameters.size(), false) : decay_mask(parameters, config.get_list("adamw_mask"));
  const double rows = config.get_double("eval_per_device_batch_size");
  const bool evaluation = !config.get_list("eval_files").empty() || config.get_double("eval_fraction") > 0;
  if (evaluation) c.evaluation = {rows > 0 ? static_cast<int64_t>(rows) : c.microbatch.rows, c.microbatch.length};
  c.dtype = config.get_string("dtype") == "bfloat16" ? DType::bf16 : DType::f32;
  c.recipe = recipe_of(config, c.model.layers);
  c.finish = finish_of(config, c.recipe);
  c.seed = static_cast<uint32_t>(config.get_int("seed"));
  c.z_loss = config.get_double("z_loss_multiplier");
  c.loss_tiles = config.get_int("num_vocab_tiling");
  c.maxtext_divisor = config.get_string("numerics") == "maxtext";
  return c;
}

void initialize_parameters(Program& program, const std::vector<Parameter>& parameters, uint32_t seed) {
  constexpr int64_t piece = 1 << 16;
  const auto fill = program.plan().target >= CpuTarget::avx512 ? avx512::init_normal : avx2::init_normal;
  const bool plain = program.plan().target == CpuTarget::ref;
  for (const Parameter& p : parameters) {
    float* w = program.state(StateRole::parameter, p.name).as<float>();
    const int64_t n = p.shape.numel();
    const uint32_t name_hash = init_name_hash(p.name);
    program.pool().run((n + piece - 1) / piece, [&](int64_t task, int) {
      const int64_t first = task * piece, count = std::min(piece, n - first);
      const bool truncated = p.init == Parameter::Init::truncated;
      if (p.init == Parameter::Init::ones)
        std::fill_n(w + first, count, 1.0f);
      else if (plain)
        fill_normal(w + first, first, count, seed, p.name, p.std, truncated);
      else
        fill(w + first, first, count, seed, name_hash, p.std, truncated);
    });
  }
}

int resolve_threads(int64_t threads) {
  if (threads > 0) return static_cast<int>(threads);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

CpuTarget resolve_target(const std::string& name) {
  const std::vector<CpuTarget> here = cpu_targets();
  if (name == "auto") return here.back();
  for (const CpuTarget t : here)
    if (name == name_of(t)) return t;
  std::string list;
  for (const CpuTarget t : here) list += fmt::format("{}{}", list.empty() ? "" : ", ", name_of(t));
  throw Error("E503", "cpu_target={} cannot run on this CPU", name)
      .where("{}", cpu_name())
      .expected(list, name)
      .hint("cpu_target=auto");
}

}  // namespace nibble
