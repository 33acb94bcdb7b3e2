// The resolved configuration: reading by key, printing, hashing.  Source: spec/training.md 1.2, 1.4, 6.4.
#include "io/config.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "io/config_layers.h"
#include "io/config_value.h"
#include "io/packaged.h"

namespace nibble {
namespace {

template <class T>
const T& held(const ConfigValue& value, std::string_view key, std::string_view type) {
  const T* found = std::get_if<T>(&value);
  NIBBLE_CHECK(found, "configuration key {} holds {} and was read as {}", key, value_json(value), type);
  return *found;
}

}  // namespace

Config::Config() {
  for (int i = 0; i < key_count(); ++i) entries_.push_back({default_value(i), "default", 0});
}

const Config::Entry& Config::entry(std::string_view key) const {
  const int i = key_index(key);
  NIBBLE_CHECK(i >= 0, "no configuration key is called {}", key);
  return entries_[static_cast<size_t>(i)];
}

const ConfigValue& Config::value(std::string_view key) const { return entry(key).value; }
bool Config::is_null(std::string_view key) const { return std::holds_alternative<std::monostate>(value(key)); }
bool Config::is_set(std::string_view key) const { return entry(key).layer > 0; }
bool Config::is_explicit(std::string_view key) const { return entry(key).layer > 2; }
const std::string& Config::origin(std::string_view key) const { return entry(key).origin; }

int64_t Config::get_int(std::string_view key) const { return held<int64_t>(value(key), key, "int"); }
bool Config::get_bool(std::string_view key) const { return held<bool>(value(key), key, "bool"); }
const std::string& Config::get_string(std::string_view key) const {
  return held<std::string>(value(key), key, "string");
}
const std::vector<std::string>& Config::get_list(std::string_view key) const {
  return held<std::vector<std::string>>(value(key), key, "list");
}
double Config::get_double(std::string_view key) const {
  if (const auto* i = std::get_if<int64_t>(&value(key))) return static_cast<double>(*i);
  return held<double>(value(key), key, "float");
}
std::vector<int64_t> Config::get_int_list(std::string_view key) const {
  std::vector<int64_t> out;
  const Key integer{"element", KeyType::integer, "0", "", "", every, 0, ""};
  for (const std::string& item : get_list(key))
    out.push_back(std::get<int64_t>(typed_value(integer, raw_of_text(item))));
  return out;
}

std::string Config::yaml(bool changed_only) const {
  std::string out;
  std::string_view group;
  for (int i = 0; i < key_count(); ++i) {
    const Entry& e = entries_[static_cast<size_t>(i)];
    if (changed_only && (e.layer == 0 || e.value == default_value(i))) continue;
    if (group != group_of(i).name) {
      group = group_of(i).name;
      out += fmt::format("{}# {}: {}\n", out.empty() ? "" : "\n", group, group_of(i).about);
    }
    const std::string line = fmt::format("{}: {}", key_at(i).name, value_yaml(e.value));
    out += fmt::format("{:<48}  # {}\n", line, e.origin);
  }
  return out;
}

std::string Config::json(bool changed_only) const {
  std::string out;
  for (int i = 0; i < key_count(); ++i) {
    const Entry& e = entries_[static_cast<size_t>(i)];
    if (changed_only && (e.layer == 0 || e.value == default_value(i))) continue;
    out += fmt::format("{}\n  \"{}\": {}", out.empty() ? "" : ",", key_at(i).name, value_json(e.value));
  }
  return "{" + out + "\n}\n";
}

std::string Config::args() const {
  std::string out;
  for (int i = 0; i < key_count(); ++i) {
    const Entry& e = entries_[static_cast<size_t>(i)];
    if (e.layer == 0) continue;
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", key_at(i).name, value_word(e.value));
  }
  return out;
}

uint64_t Config::hash() const {
  std::vector<std::string> lines;
  for (int i = 0; i < key_count(); ++i)
    lines.push_back(fmt::format("{}={}\n", key_at(i).name, value_json(entries_[static_cast<size_t>(i)].value)));
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return xxh3(all);
}

std::vector<std::pair<std::string, std::string>> Config::determining() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (int i = 0; i < key_count(); ++i) {
    const Key& key = key_at(i);
    if (!(key.flags & key_determines)) continue;
    // The schedule's length decides the result even where it follows `steps`, which itself is no part of a checkpoint.
    const std::string json = key.name == "learning_rate_schedule_steps"
                                 ? fmt::format("{}", schedule_steps(*this))
                                 : value_json(entries_[static_cast<size_t>(i)].value);
    out.emplace_back(key.name, json);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::pair<std::string, std::string>> Config::architecture() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (int i = 0; i < key_count(); ++i)
    if (key_at(i).flags & key_architecture)
      out.emplace_back(key_at(i).name, value_json(entries_[static_cast<size_t>(i)].value));
  std::sort(out.begin(), out.end());
  return out;
}

Config Config::with(std::string_view key, std::string_view text, std::string from) const {
  if (key_index(key) < 0) throw unknown_key(std::string(key), from);
  Config copy = *this;
  Entry& e = copy.entries_[static_cast<size_t>(key_index(key))];
  try {
    e = {typed_value(key_at(key_index(key)), raw_of_text(text)), from, 4};
  } catch (Error& error) {
    error.where_text = from;
    throw;
  }
  return copy;
}

int64_t global_batch(const Config& c) {  // one device in this version
  const double rows =
      c.get_double("per_device_batch_size") * static_cast<double>(c.get_int("gradient_accumulation_steps"));
  return static_cast<int64_t>(rows);
}

int64_t total_steps(const Config& c) {
  const int64_t tokens = global_batch(c) * c.get_int("max_target_length");
  if (const int64_t budget = c.get_int("token_budget"); budget > 0) return (budget + tokens - 1) / tokens;
  const int64_t steps = c.get_int("steps");
  return steps == -1 ? c.get_int("learning_rate_schedule_steps") : steps;
}

int64_t schedule_steps(const Config& c) {
  const int64_t steps = c.get_int("learning_rate_schedule_steps");
  return steps == -1 ? total_steps(c) : steps;
}

std::string_view packaged_config(std::string_view path) {
  for (int i = 0; i < packaged_file_count; ++i)
    if (packaged_files[i].path == path) return packaged_files[i].text;
  return {};
}

std::vector<std::string_view> packaged_configs() {
  std::vector<std::string_view> out;
  for (int i = 0; i < packaged_file_count; ++i) out.push_back(packaged_files[i].path);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> model_names() {
  std::vector<std::string> out;
  for (std::string_view path : packaged_configs())
    if (path.starts_with("models/") && path.ends_with(".yml")) out.emplace_back(path.substr(7, path.size() - 11));
  return out;
}

}  // namespace nibble
