// What this version lacks (E010, E503), and values that do not fit together (E101 to E108), from the configuration
// alone. Source: spec/training.md 1.3, 2.1, 7.2.
#include <cmath>

#include "io/config_builder.h"
#include "io/suggest.h"

namespace nibble {

std::string ConfigBuilder::places(std::initializer_list<std::string_view> keys) const {
  std::string out;
  for (std::string_view key : keys)
    out += fmt::format("{}{} from {}", out.empty() ? "" : ", ", key, result.config.origin(key));
  return out;
}

Error ConfigBuilder::conflict(std::string_view id, std::string what,
                              std::initializer_list<std::string_view> keys) const {
  return Error(id, "{}", what).where("{}", places(keys));
}

void ConfigBuilder::check_refusals() {
  std::vector<std::string> unused;
  for (int i = 0; i < key_count(); ++i) {
    const Key& key = key_at(i);
    const Entry& entry = at(key.name);
    if (key.now == no_effect && entry.layer > model && entry.value != default_value(i))
      unused.push_back(fmt::format("{}={}", key.name, value_yaml(entry.value)));
    if (works_now(key, entry.value)) continue;
    const std::string value = value_yaml(entry.value);
    if (key.name == "hardware") {
      errors.push_back(Error("E503", "hardware={}: no GPU back-end in this version", value)
                           .where("{}", entry.origin)
                           .expected("auto or cpu", value)
                           .hint("hardware=cpu"));
      continue;
    }
    std::string has = value_yaml(default_value(i));
    if (key.now != only_default) {
      std::vector<std::string> names;
      for (std::string_view a : alternatives(key.now)) names.push_back(a.empty() ? "\"\"" : std::string(a));
      has = either(names);
    }
    errors.push_back(Error("E010", "{}={} is not in this version", key.name, value)
                         .where("{}", entry.origin)
                         .expected(fmt::format("{}={}", key.name, has), value)
                         .hint("{}={}{}", key.name, value_yaml(default_value(i)),
                               key.name == "finish_high_precision_start"
                                   ? ", or a step: auto needs the noise of the gradient, which is not estimated yet"
                                   : ""));
  }
  const std::string& folder = result.config.get_string("run_name");
  if (folder.find('/') != folder.npos || folder == "." || folder == "..")
    errors.push_back(Error("E002", "run_name={} is no name of a folder", folder)
                         .where("{}", result.config.origin("run_name"))
                         .expected("a name without /", folder)
                         .hint("base_output_directory= says where run folders lie"));
  const auto mlp = result.config.get_list("mlp_activations");
  if (works_now(*find_key("mlp_activations"), at("mlp_activations").value) &&
      mlp != std::vector<std::string>{"silu", "linear"})
    errors.push_back(Error("E010", "mlp_activations={} is not in this version", value_yaml(at("mlp_activations").value))
                         .where("{}", at("mlp_activations").origin)
                         .hint("mlp_activations=[silu,linear]"));
  check_remat();
  check_recipe();
  if (!unused.empty())
    result.notices.push_back(
        fmt::format("notice: accepted, without effect in this version and on any result: {}", fmt::join(unused, ", ")));
}

// The keys of remat_policy=custom without it, and what lies in host memory anyway.
void ConfigBuilder::check_remat() {
  const std::string& policy = result.config.get_string("remat_policy");
  std::vector<std::string> unread, offloaded;
  for (const Key& key : memory_keys) {
    if (key.type != KeyType::choice || !key.legal.starts_with("remat|") || key.now != every) continue;
    const Entry& entry = at(key.name);
    const std::string word = fmt::format("{}={}", key.name, value_yaml(entry.value));
    if (policy != "custom" && entry.layer > model && entry.value != default_value(key_index(key.name)))
      unread.push_back(word);
    if (policy == "custom" && entry.value == ConfigValue(std::string("offload"))) offloaded.push_back(word);
  }
  if (policy.ends_with("_offloaded")) offloaded.push_back("remat_policy=" + policy);
  if (!unread.empty())
    result.notices.push_back(fmt::format("notice: read with remat_policy=custom only: {}", fmt::join(unread, ", ")));
  if (!offloaded.empty())
    result.notices.push_back(
        fmt::format("notice: {}: kept where it is, a CPU computes in host memory", fmt::join(offloaded, ", ")));
}

// What belongs to a recipe without one, and the name whose meaning is not obvious.
void ConfigBuilder::check_recipe() {
  const std::string& recipe = result.config.get_string("quantization");
  const bool own = !result.config.get_string("recipe_file").empty();
  if (own && !recipe.empty() && at("recipe_file").layer > model && at("quantization").layer > model)
    errors.push_back(conflict("E102",
                              fmt::format("recipe_file and quantization={} both say what the recipe is", recipe),
                              {"recipe_file", "quantization"})
                         .hint("quantization=\"\", and base: {} in the file", recipe));
  std::vector<std::string> unread;
  const auto changed = [&](std::string_view name) {
    const Entry& entry = at(name);
    return entry.layer > model && entry.value != default_value(key_index(name));
  };
  for (const std::string_view name :
       {"recipe_disable", "recipe_addons", "quantize_sites", "high_precision_first_layers",
        "high_precision_last_layers", "tensor_scale", "gemm_accumulation", "finish_high_precision"})
    if (changed(name)) unread.push_back(fmt::format("{}={}", name, value_yaml(at(name).value)));
  if (changed("finish_high_precision_start") && result.config.get_string("finish_high_precision") == "off" && !own)
    result.notices.push_back(fmt::format("notice: read with finish_high_precision only: finish_high_precision_start={}",
                                         value_yaml(at("finish_high_precision_start").value)));
  if ((recipe.empty() || recipe == "bf16" || recipe == "fp32") && !own && !unread.empty() &&
      options.command != "ckpt")
    result.notices.push_back(
        fmt::format("notice: read with a recipe only (quantization=te_nvfp4): {}", fmt::join(unread, ", ")));
  if (recipe == "fp8")
    result.notices.push_back("notice: quantization=fp8 is fp8_delayed: one scale a tensor, from its last 1,024 steps");
}

void ConfigBuilder::check_batch() {
  const Config& c = result.config;
  for (std::string_view key : {"per_device_batch_size", "eval_per_device_batch_size"}) {
    const double rows = c.get_double(key);
    if (rows == std::floor(rows)) continue;
    const double lower = std::max(key[0] == 'e' ? 0.0 : 1.0, std::floor(rows));
    errors.push_back(conflict("E101",
                              fmt::format("global batch {} = {} {} x devices 1 x gradient_accumulation_steps {} needs "
                                          "whole sequences on every device",
                                          rows * static_cast<double>(c.get_int("gradient_accumulation_steps")), key,
                                          rows, c.get_int("gradient_accumulation_steps")),
                              {key})
                         .expected(fmt::format("{} or {}", lower, lower + 1), fmt::format("{}", rows))
                         .hint("{}={}", key, lower + 1));
  }
}

void ConfigBuilder::check_exclusive() {
  const Config& c = result.config;
  const auto given = [&](std::string_view key) { return at(key).value != default_value(key_index(key)); };
  if (given("steps") && given("token_budget"))
    errors.push_back(conflict("E102", "steps and token_budget both say how long to train", {"steps", "token_budget"})
                         .hint("give one of the two"));
  if (c.get_int("steps") == -1 && c.get_int("learning_rate_schedule_steps") == -1 && !given("token_budget"))
    errors.push_back(conflict("E102", "steps=-1 follows learning_rate_schedule_steps, and that is -1 too",
                              {"steps", "learning_rate_schedule_steps"})
                         .hint("steps=1000"));
  if (given("load_parameters_path") && given("load_full_state_path"))
    errors.push_back(conflict("E102", "load_parameters_path and load_full_state_path exclude each other",
                              {"load_parameters_path", "load_full_state_path"})
                         .hint("load_full_state_path brings the weights with it: leave out load_parameters_path"));
  if (const std::string& recipe = c.get_string("quantization");
      (recipe == "fp32" || recipe == "bf16") && c.get_string("dtype") != (recipe == "fp32" ? "float32" : "bfloat16"))
    errors.push_back(conflict("E102",
                              fmt::format("quantization={} needs dtype={}, and dtype is {}", recipe,
                                          recipe == "fp32" ? "float32" : "bfloat16", c.get_string("dtype")),
                              {"quantization", "dtype"})
                         .hint("dtype={}", recipe == "fp32" ? "float32" : "bfloat16"));
  if (c.get_string("dtype") == "bfloat16") {
    const auto refuse = [&](std::string_view key, std::string_view value, std::string_view why) {
      errors.push_back(Error("E010", "{}={} with dtype=bfloat16 is not in this version: {}", key, value, why)
                           .where("{}", places({key, "dtype"}))
                           .hint("dtype=float32"));
    };
    if (c.get_string("numerics") == "maxtext")
      refuse("numerics", "maxtext", "MaxText's rounding points in bfloat16 are not reproduced");
    if (c.get_bool("logits_dot_in_fp32")) refuse("logits_dot_in_fp32", "true", "the head multiplies rounded operands");
    if (const std::string& p = c.get_string("matmul_precision"); p != "default" && p != "bfloat16")
      refuse("matmul_precision", p, "products take rounded operands");
  }
  if (given("prompt") + given("prompt_file") + given("prompts") > 1)
    errors.push_back(
        conflict("E102", "prompt, prompt_file and prompts exclude each other", {"prompt", "prompt_file", "prompts"})
            .hint("give one of the three"));
  if (c.get_int("min_new_tokens") > c.get_int("max_new_tokens"))
    errors.push_back(conflict("E102",
                              fmt::format("min_new_tokens={} is more than max_new_tokens={}",
                                          c.get_int("min_new_tokens"), c.get_int("max_new_tokens")),
                              {"min_new_tokens", "max_new_tokens"})
                         .hint("max_new_tokens={}", c.get_int("min_new_tokens")));
}

void ConfigBuilder::check_model() {
  const Config& c = result.config;
  const int64_t heads = c.get_int("base_num_query_heads"), kv = c.get_int("base_num_kv_heads"),
                width = c.get_int("head_dim");
  if (heads % kv != 0) {
    int64_t legal = kv;
    while (heads % legal != 0) --legal;
    errors.push_back(
        conflict("E104", fmt::format("{} query heads cannot share {} key/value heads evenly", heads, kv),
                 {"base_num_query_heads", "base_num_kv_heads"})
            .expected("base_num_kv_heads that divides base_num_query_heads", fmt::format("{} and {}", heads, kv))
            .hint("base_num_kv_heads={}", legal));
  }
  if (width % 2 != 0 && c.get_string("rope_type") != "none")
    errors.push_back(
        conflict("E108",
                 fmt::format("head_dim={} is odd, and rope_type={} rotates pairs", width, c.get_string("rope_type")),
                 {"head_dim", "rope_type"})
            .expected("an even head_dim", fmt::format("{}", width))
            .hint("head_dim={}", width + 1));
  const bool local = c.get_string("attention_type") == "local_sliding";
  if (const int64_t window = c.get_int("sliding_window_size"); local != (window > 0))
    errors.push_back(conflict("E108",
                              local ? "attention_type=local_sliding needs a window, and sliding_window_size is 0"
                                    : fmt::format("sliding_window_size={} needs attention_type=local_sliding", window),
                              {"attention_type", "sliding_window_size"})
                         .hint("{}", local ? "sliding_window_size=512" : "attention_type=local_sliding"));
  const int64_t length = c.get_int("max_target_length"), most = c.get_int("max_position_embeddings");
  if (most > 0 && length > most)
    errors.push_back(conflict("E108",
                              fmt::format("max_target_length={} is more than max_position_embeddings={}", length, most),
                              {"max_target_length", "max_position_embeddings"})
                         .expected(fmt::format("at most {}", most), fmt::format("{}", length))
                         .hint("max_target_length={}", most));
}

void ConfigBuilder::check_preset() {
  const Config& c = result.config;
  if (c.get_string("numerics") != "maxtext") return;
  if (c.get_bool("logits_via_embedding"))
    errors.push_back(conflict("E102",
                              "numerics=maxtext with logits_via_embedding=true is not in this version: MaxText rounds "
                              "a tied table to bfloat16",
                              {"numerics", "logits_via_embedding"})
                         .hint("numerics=nibble"));
  const auto root = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(c.get_int("head_dim")))));
  const bool exact = root * root == c.get_int("head_dim") && (root & (root - 1)) == 0;
  if (!exact)  // the factor folded into q is exact only as a power of two
    errors.push_back(conflict("E102",
                              fmt::format("numerics=maxtext with head_dim={} is not in this version: 1/sqrt(head_dim) "
                                          "must be a power of two to fold into q exactly",
                                          c.get_int("head_dim")),
                              {"numerics", "head_dim"})
                         .expected("head_dim 16, 64 or 256", fmt::format("{}", c.get_int("head_dim")))
                         .hint("numerics=nibble"));
}

void ConfigBuilder::check_mesh() {
  for (std::string_view level : {"ici_", "dcn_"}) {
    std::vector<std::string> open;
    std::string where;
    for (const Key& key : parallel_keys)
      if (key.name.starts_with(level) && key.name.ends_with("_parallelism") &&
          at(key.name).value == ConfigValue(int64_t{-1})) {
        open.emplace_back(key.name);
        where += fmt::format("{}{} from {}", where.empty() ? "" : ", ", key.name, at(key.name).origin);
      }
    if (open.size() > 1)
      errors.push_back(
          Error("E105", "{} are both -1: only one axis can take the rest of the devices", fmt::join(open, " and "))
              .where("{}", where)
              .hint("{}=1", open.back()));
  }
}

void ConfigBuilder::check_combinations() {
  check_batch();
  check_exclusive();
  check_model();
  check_preset();
  check_mesh();
  const Config& c = result.config;
  if (!errors.empty() || options.command != "train") return;
  const int64_t warmup = c.get_int("warmup_steps"), length = schedule_steps(c);
  if (warmup > length)
    result.notices.push_back(fmt::format(
        "notice: warmup_steps={} is longer than the schedule of {} steps: the rate never reaches learning_rate", warmup,
        length));
}

}  // namespace nibble
