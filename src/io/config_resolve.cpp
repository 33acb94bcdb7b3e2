// The layers of a configuration: base < model < run file < command line.  Source: spec/training.md 1.2, 1.7, 2.1.
#include <algorithm>
#include <filesystem>

#include "io/config_builder.h"
#include "io/suggest.h"

namespace nibble {
namespace {

using Kind = RawValue::Kind;

/// Names of spec/training.md 3 and of MaxText 0.2.5 that later versions may build, so that they are no typing mistakes.
constexpr std::string_view other_models[] = {
    "deepseek2-16b",  "deepseek2-236b",  "deepseek3-671b",    "deepseek3.2-671b", "gemma-2b",
    "gemma-7b",       "gemma2-27b",      "gemma2-2b",         "gemma2-9b",        "gemma3-12b",
    "gemma3-1b",      "gemma3-270m",     "gemma3-27b",        "gemma3-4b",        "gemma4-26b",
    "gemma4-31b",     "gemma4-e2b",      "gemma4-e4b",        "gpt-oss-120b",     "gpt-oss-20b",
    "gpt2",           "gpt2-large",      "gpt2-medium",       "gpt2-xl",          "gpt3-175b",
    "gpt3-22b",       "gpt3-52k",        "gpt3-6b",           "kimi-k2-1t",       "llama4-17b-128e",
    "llama4-17b-16e", "mixtral-8x22b",   "mixtral-8x7b",      "olmo3-32b",        "olmo3-7b",
    "qwen2.5-1.5b",   "qwen2.5-14b",     "qwen2.5-7b",        "qwen3-0.6b",       "qwen3-1.7b",
    "qwen3-14b",      "qwen3-235b-a22b", "qwen3-30b-a3b",     "qwen3-32b",        "qwen3-480b-a35b",
    "qwen3-4b",       "qwen3-8b",        "qwen3-next-80b-a3b"};

/// An empty spelling of a file list in a MaxText configuration says nothing about the key of nibble that it names.
bool is_empty(const RawValue& value) {
  return value.kind == Kind::null || (value.kind == Kind::scalar && (value.text.empty() || value.text == "None" ||
                                                                     value.text == "null" || value.text == "none"));
}

}  // namespace

void ConfigBuilder::set(std::string_view key, ConfigValue value, std::string origin, Layer layer) {
  at(key) = {std::move(value), std::move(origin), layer};
}

void ConfigBuilder::apply_maxtext(const Assignment& row) {
  const MaxTextName known = maxtext_name(row.name, row.value);
  switch (known.kind) {
    case MaxTextName::Class::no_meaning:
      if (!known.at_default) without_meaning_.push_back(fmt::format("{}={}", row.name, row.value.text));
      return;
    case MaxTextName::Class::refused:
      if (!known.at_default && options.check)
        errors.push_back(Error("E010", "{}={} of MaxText is refused: {}", row.name, row.value.text, known.reason)
                             .where("{}", row.origin)
                             .hint("remove {}", row.name));
      return;
    default:
      errors.push_back(unknown_key(row.name, row.origin));
  }
}

void ConfigBuilder::apply(const Assignment& row, Layer layer) {
  const Key* key = find_key(row.name);
  if (!key) return apply_maxtext(row);
  if (key->name != row.name && is_empty(row.value)) return;
  try {
    Entry entry{typed_value(*key, row.value), row.origin, layer};
    if (layer == base && !works_now(*key, entry.value) && is_maxtext_default(*key, row.value)) return;
    const auto guarded = model_values_.find(std::string(key->name));
    if (layer > model && guarded != model_values_.end()) {
      if (entry.value == guarded->second.value) return;  // the model's own value: nothing was overridden
      overrides_[guarded->first] = entry;
    }
    at(key->name) = std::move(entry);
  } catch (Error& error) {
    if (layer == base && is_maxtext_default(*key, row.value)) return;  // MaxText's default, refused elsewhere: unset
    error.where_text = row.origin;
    errors.push_back(error);
  }
}

std::string ConfigBuilder::model_name(std::string& where) const {
  std::string name = "default";
  where = "default";
  for (const auto* rows : {&files_.base, &files_.run, &words_})
    for (const Assignment& row : *rows)
      if (row.name == "model_name" && row.value.kind == Kind::scalar && !row.value.text.empty()) {
        name = row.value.text;
        where = row.origin;
      }
  if (where == "default" && means_text_files()) {
    name = "nibble-1m";
    where = "train on text files";
  }
  return name;
}

/// `nibble train book.txt`: text files, no model_name, no configuration (spec/training.md 1.7).
bool ConfigBuilder::means_text_files() const {
  if ((options.command != "train" && options.command != "config" && options.command != "plan") || data_files_.empty() ||
      has_config_ || !options.stored.empty())
    return false;
  if (std::any_of(words_.begin(), words_.end(), [](const Assignment& w) { return w.name == "model_name"; }))
    return false;
  return std::none_of(data_files_.begin(), data_files_.end(), [](const std::string& file) {
    const auto kind = std::filesystem::path(file).extension();
    return kind == ".nbt" || kind == ".bin" || kind == ".idx";
  });
}

void ConfigBuilder::apply_model(const std::string& name, const std::string& where) {
  std::string known = name.ends_with("-Instruct") ? name.substr(0, name.size() - 9) : name;
  const std::string_view text = packaged_config(fmt::format("models/{}.yml", known));
  if (text.empty()) {
    std::vector<std::string> names = model_names();
    const bool later = std::find(std::begin(other_models), std::end(other_models), known) != std::end(other_models);
    if (later && !options.check) return;
    if (later) {
      errors.push_back(
          Error("E010", "model_name={} is not in this version", name)
              .where("{}", where)
              .expected(fmt::format("one of {}", fmt::join(names, ", ")), name)
              .hint("model_name={}", nearest(known, names, 1).empty() ? "nibble-34m" : nearest(known, names, 1)[0]));
      return;
    }
    const auto all = names;
    names.insert(names.end(), std::begin(other_models), std::end(other_models));
    const auto near = nearest(known, names);
    errors.push_back(Error("E009", "unknown model_name {}", name)
                         .where("{}", where)
                         .expected(fmt::format("one of {}", fmt::join(all, ", ")), name)
                         .hint("{}", near.empty() ? "nibble config explain model_name"
                                                  : fmt::format("did you mean {}?", either(near))));
    return;
  }
  for (Assignment row : read_yaml(text, fmt::format("configs/models/{}.yml", known))) {
    row.origin = "model " + known;
    apply(row, model);
    const Key* key = find_key(row.name);
    if (key && group_of(key_index(key->name)).name == "model") model_values_[row.name] = at(row.name);
  }
}

void ConfigBuilder::apply_stored() {
  for (const auto& [name, json] : options.stored) {
    const int i = key_index(name);
    if (i < 0) {
      errors.push_back(Error("E010", "key {} of the checkpoint is not in this version", name)
                           .where("{}", options.stored_origin)
                           .hint("use the version that wrote it"));
      continue;
    }
    apply({name, raw_of_text(json), options.stored_origin}, model);
    if (group_of(i).name == "model") model_values_[name] = at(name);
  }
}

void ConfigBuilder::apply_layers() {
  for (const Assignment& row : files_.base) apply(row, base);
  std::string where;
  std::string name = model_name(where);
  if (options.stored.empty())
    apply_model(name, where);
  else
    apply_stored();
  if (means_text_files()) {
    const auto budget = [](const Assignment& w) { return w.name == "token_budget"; };
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, const char*>>{{"model_name", "nibble-1m"},
                                                                    {"steps", "1000"},
                                                                    {"eval_fraction", "0.05"},
                                                                    {"eval_holdout", "tail"},
                                                                    {"sample_interval", "200"},
                                                                    {"num_epoch", "0"}})
      if (std::string_view(key) != "steps" || std::none_of(words_.begin(), words_.end(), budget))
        apply({key, raw_of_text(value), "train on text files"}, run);
  }
  for (const Assignment& row : files_.run) apply(row, run);
  for (const Assignment& row : words_) apply(row, command_line);
  if (!data_files_.empty()) {
    auto files = result.config.get_list(options.files_key);
    files.insert(files.end(), data_files_.begin(), data_files_.end());
    set(options.files_key, files, "file arguments", command_line);
  }
  if (name.ends_with("-Instruct")) at("model_name").value = name.substr(0, name.size() - 9);
  check_guard();
  if (!without_meaning_.empty())
    result.notices.push_back(
        fmt::format("warning: names of MaxText without meaning in nibble: {}", fmt::join(without_meaning_, ", ")));
}

void ConfigBuilder::check_guard() {
  if (std::get<bool>(at("override_model_config").value)) return;

  for (const auto& [key, entry] : overrides_)
    errors.push_back(
        Error("E008", "{}={} differs from {} of {}", key, value_yaml(entry.value), value_yaml(model_values_[key].value),
              model_values_[key].origin)
            .where("{}", entry.origin)
            .expected(fmt::format("{}={}", key, value_yaml(model_values_[key].value)), value_yaml(entry.value))
            .hint("override_model_config=true"));
}

void ConfigBuilder::derive() {
  Config& c = result.config;
  if (c.get_string("numerics") == "maxtext")  // the right column of spec/training.md 2.1, as far as keys express it
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, const char*>>{{"adamw_mask", "[]"},
                                                                    {"cross_document_targets", "true"},
                                                                    {"float32_qk_product", "false"},
                                                                    {"float32_logits", "false"},
                                                                    {"activations_in_float32", "false"},
                                                                    {"float32_gate_logits", "false"}})
      if (at(key).layer < run) set(key, typed_value(*find_key(key), raw_of_text(value)), "numerics=maxtext", model);
  const std::string rope = c.get_string("rope_type");
  const bool yarn = rope == "yarn", llama = rope == "llama3.1";
  const auto fill = [&](std::string_view key, ConfigValue value) {
    if (c.is_null(key)) set(key, std::move(value), "rope_type", by_default);
  };
  fill("rope_factor", yarn ? 40.0 : llama ? 8.0 : 1.0);
  fill("original_max_position_embeddings", int64_t{yarn ? 4096 : llama ? 8192 : 0});
  fill("max_position_embeddings", int64_t{yarn ? 163840 : llama ? 131072 : 0});
  if (c.get_string("hardware") == "gpu_multiprocess") at("hardware").value = std::string("gpu");
  if (c.get_string("dataset_type") == "hf") {
    const std::string kind = c.get_string("hf_path"), from = at("dataset_type").origin;
    if (kind == "text") {
      set("dataset_type", std::string("text"), from, command_line);
      set("text_document", std::string("line"), from, command_line);
    } else if (kind == "json") {
      set("dataset_type", std::string("jsonl"), from, command_line);
    } else {
      errors.push_back(Error("E302", "hf_path={}: nibble downloads nothing", kind)
                           .where("{}", at("hf_path").origin)
                           .expected("hf_path=text or hf_path=json with train_files", kind)
                           .hint("fetch the data as JSON lines, then dataset_type=jsonl train_files=[data.jsonl]"));
    }
  }
}

Resolved ConfigBuilder::finish() {
  if (!errors.empty()) throw Errors(std::move(errors));
  // json=true means --json where a command has that option; `config` shows the key.
  if (options.command != "config" && std::ranges::find(options.flags, "json") != options.flags.end() &&
      result.config.get_bool("json"))
    result.options.try_emplace("json");
  return std::move(result);
}

Resolved resolve(const std::vector<std::string>& arguments, const ResolveOptions& options) {
  ConfigBuilder builder(options);
  builder.read_words(arguments);
  builder.read_environment();
  builder.apply_layers();
  builder.derive();
  if (options.check) {
    builder.check_refusals();
    builder.check_combinations();
  }
  return builder.finish();
}

}  // namespace nibble
