// nibble config: the resolved configuration, and what every key means.  Source: spec/training.md 1.4.
#include "io/config.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "command.h"
#include "core/error.h"
#include "io/config_layers.h"
#include "io/config_value.h"
#include "io/keys.h"
#include "io/suggest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_notices(const std::vector<std::string>& notices) {
  for (const std::string& notice : notices) fmt::print(stderr, "{}\n", notice);
}

std::string state_of(const Key& key) {
  if (key.now == every) return "works";
  if (key.now == no_effect) return "accepted; without effect in this version, and never on a result";
  if (key.now == only_default) return fmt::format("only {}; other values are not in this version", key.initial);
  std::vector<std::string> names;
  for (std::string_view a : alternatives(key.now)) names.push_back(a.empty() ? "\"\"" : std::string(a));
  return fmt::format("works with {}; other values are not in this version", either(names));
}

int explain(const std::string& name) {
  const Key* key = find_key(name);
  if (!key) {
    const MaxTextName known = maxtext_name(name, {});
    if (known.kind == MaxTextName::Class::unknown) throw unknown_key(name, "argument 2");
    if (known.kind == MaxTextName::Class::refused)
      fmt::print("{}\n  a name of MaxText that nibble refuses unless it has MaxText's default: {}\n", name,
                 known.reason);
    else
      fmt::print("{}\n  a name of MaxText without meaning in nibble: accepted, without effect\n", name);
    return exit_done;
  }
  const KeyGroup& group = group_of(key_index(key->name));
  fmt::print("{}{}\n  {}\n\n", key->name, key->name == name ? "" : fmt::format(" (alias {})", name), key->meaning);
  fmt::print("  type              {}\n", type_name(key->type));
  if (!key->legal.empty()) {
    std::vector<std::string> names;
    for (std::string_view a : alternatives(key->legal)) names.push_back(a.empty() ? "\"\"" : std::string(a));
    fmt::print("  legal             {}\n", either(names));
  }
  fmt::print("  default           {}\n", key->initial);
  const std::string foreign = maxtext_default_text(*key);
  fmt::print("  MaxText's default {}\n", foreign.empty() ? "none: nibble's own key" : foreign);
  fmt::print("  this version      {}\n", state_of(*key));
  fmt::print("  in a checkpoint   {}\n", key->flags & key_determines ? "yes: the result depends on it" : "no");
  std::vector<std::string> names;
  for (const Key& other : group.keys)
    if (other.name != key->name) names.emplace_back(other.name);
  std::vector<std::string> related = nearest(key->name, names, 5);
  if (related.empty())
    related.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(5, names.size())));
  fmt::print("  related           {}\n  group             {} ({})\n", fmt::join(related, ", "), group.name,
             group.about);
  return exit_done;
}

int keys(const std::string& wanted) {
  std::vector<std::string> groups;
  for (const KeyGroup& group : key_groups()) groups.emplace_back(group.name);
  if (!wanted.empty() && std::find(groups.begin(), groups.end(), wanted) == groups.end())
    throw Error("E007", "no group of keys is called {}", wanted)
        .expected(fmt::format("one of {}", fmt::join(groups, ", ")), wanted)
        .hint("nibble config keys");
  for (const KeyGroup& group : key_groups()) {
    if (!wanted.empty() && wanted != group.name) continue;
    fmt::print("{}: {}\n", group.name, group.about);
    for (const Key& key : group.keys)
      fmt::print("  {:<36} {:<6} {:<22} {}\n", key.name, type_name(key.type), key.initial, key.meaning);
    fmt::print("\n");
  }
  return exit_done;
}

/// JSON Schema (draft 2020-12) of a configuration file, for editors.
int schema() {
  using json = nlohmann::ordered_json;
  json properties = json::object();
  for (int i = 0; i < key_count(); ++i) {
    const Key& key = key_at(i);
    json row = {{"description", key.meaning}, {"default", json::parse(value_json(default_value(i)))}};
    json types = json::array();
    switch (key.type) {
      case KeyType::integer:
      case KeyType::bytes:
        types = {"integer", "string"};
        break;  // 4k, 1_000
      case KeyType::number:
        types = {"number"};
        break;
      case KeyType::boolean:
        types = {"boolean"};
        break;
      case KeyType::list:
        types = {"array", "string"};
        break;
      default:
        types = {"string"};
    }
    if (key.type == KeyType::choice) {
      row["enum"] = json::array();
      for (std::string_view a : alternatives(key.legal)) row["enum"].push_back(a);
    } else if (row["default"].is_string() && key.type != KeyType::text && key.type != KeyType::path &&
               key.type != KeyType::bytes && key.type != KeyType::integer) {
      types.push_back("string");  // "auto"
    }
    if (key.flags & key_nullable) types.push_back("null");
    row["type"] = types;
    properties[std::string(key.name)] = row;
  }
  const json all = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                    {"title", "nibble configuration"},
                    {"type", "object"},
                    {"properties", properties}};
  print(all.dump(2) + "\n");
  return exit_done;
}

/// A configuration file, a run folder (its config.yml) or a checkpoint (its nibble.json).
Config load_side(const std::string& path) {
  ResolveOptions options{.command = "config"};
  options.check = false;
  const auto found = [](const fs::path& file) { return fs::exists(file); };
  if (fs::is_directory(path) && found(fs::path(path) / "nibble.json")) {
    std::ifstream file(fs::path(path) / "nibble.json");
    nlohmann::json stored;
    try {
      stored = nlohmann::json::parse(file);
      for (const auto& [key, value] : stored.at("config").items()) options.stored.emplace_back(key, value.dump());
    } catch (const nlohmann::json::exception& e) {
      throw Error("E402", "{}/nibble.json cannot be read: {}", path, e.what()).hint("nibble ckpt verify {}", path);
    }
    options.stored_origin = path;
    return resolve({}, options).config;
  }
  if (fs::is_directory(path)) {
    if (!found(fs::path(path) / "config.yml"))
      throw Error("E204", "{} holds no configuration", path)
          .expected("config.yml of a run or nibble.json of a checkpoint", path)
          .hint("give a .yml file");
    return resolve({(fs::path(path) / "config.yml").string()}, options).config;
  }
  return resolve({path}, options).config;
}

int diff(const std::string& left, const std::string& right, bool exit_code) {
  const Config a = load_side(left), b = load_side(right);
  int differing = 0;
  for (int i = 0; i < key_count(); ++i) {
    const std::string_view key = key_at(i).name;
    if (a.value(key) == b.value(key)) continue;
    ++differing;
    fmt::print("{}: {} -> {}\n", key, value_yaml(a.value(key)), value_yaml(b.value(key)));
  }
  if (differing == 0) fmt::print("no key differs\n");
  return exit_code && differing > 0 ? exit_no : exit_done;
}

int run(const std::vector<std::string>& arguments) {
  static const std::vector<std::string> subcommands = {"explain", "diff", "keys", "schema"};
  const std::string first = arguments.empty() ? "" : arguments[0];
  std::vector<std::string> words(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (std::find(subcommands.begin(), subcommands.end(), first) != subcommands.end() && !fs::exists(first)) {
    const auto take = std::remove(words.begin(), words.end(), "--exit-code");
    const bool exit_code = take != words.end();
    words.erase(take, words.end());
    if (first == "schema" && words.empty()) return schema();
    if (first == "keys" && words.empty()) return keys("");
    if (first == "keys" && words.size() == 2 && words[0] == "--group") return keys(words[1]);
    if (first == "keys" && words.size() == 1 && words[0].starts_with("--group=")) return keys(words[0].substr(8));
    if (first == "explain" && words.size() == 1) return explain(words[0]);
    if (first == "diff" && words.size() == 2) return diff(words[0], words[1], exit_code);
    throw Error("E007", "nibble config {} does not take these arguments", first)
        .expected("explain KEY, diff A B, keys [--group G] or schema", fmt::format("{}", fmt::join(arguments, " ")))
        .hint("nibble config --help");
  }
  ResolveOptions options{.command = "config"};
  options.flags = {"changed", "json", "args"};
  const Resolved resolved = resolve(arguments, options);
  print_notices(resolved.notices);
  const auto flag = [&](const char* name) { return resolved.options.count(name) > 0; };
  if (flag("args"))
    print(resolved.config.args() + "\n");
  else if (flag("json"))
    print(resolved.config.json(flag("changed")));
  else
    print(resolved.config.yaml(flag("changed")));
  return exit_done;
}

}  // namespace

constinit const Command config_command = {
    .name = "config",
    .synopsis =
        "nibble config [FILE] [key=value ...] [--changed] [--json | --args]\n"
        "nibble config explain KEY | diff A B [--exit-code] | keys [--group G] | schema",
    .summary = "the resolved configuration, and what every key means",
    .help =
        "DESCRIPTION\n"
        "  Prints the configuration that the same arguments would give to `nibble train`, as YAML grouped by topic,\n"
        "  each line with the place that set the value. The layers are: defaults, model file, run file, command line;\n"
        "  the last one wins.\n"
        "\n"
        "OPTIONS\n"
        "  --changed       only keys that differ from their default\n"
        "  --json          one JSON object\n"
        "  --args          key=value words: nibble config $(nibble config FILE --args)\n"
        "\n"
        "SUBCOMMANDS\n"
        "  explain KEY     type, default, MaxText's default, meaning, related keys, what this version does\n"
        "  diff A B        keys that differ between two files, run folders or checkpoints; --exit-code: 1 if any\n"
        "  keys            all keys, or those of one group (--group optimizer)\n"
        "  schema          JSON Schema for editors\n"
        "\n"
        "EXIT STATUS\n"
        "  0, or the code of the first error (64 usage, 66 file missing, 69 not available, 78 values that do not "
        "fit).\n"
        "\n"
        "EXAMPLES\n"
        "  nibble config model_name=nibble-10m steps=2000 --changed\n"
        "  nibble config explain learning_rate\n",
    .run = run};

}  // namespace nibble
