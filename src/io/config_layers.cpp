// YAML files with includes, and the classes of MaxText's names.  Source: spec/training.md 1.1 to 1.3, 1.6.
#include "io/config_layers.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "io/suggest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Kind = RawValue::Kind;

/// One text for values that mean the same, so that 12.0 equals 12 and "None" equals null.
std::string canonical(std::string_view s) {
  if (s.empty() || s == "null" || s == "None" || s == "none" || s == "~") return "";
  if (s == "True") return "true";
  if (s == "False") return "false";
  char* end = nullptr;
  const std::string text(s);
  const double x = std::strtod(text.c_str(), &end);  // C locale: nothing in nibble calls setlocale
  return *end == '\0' ? fmt::format("{}", x) : text;
}

std::string canonical(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "";
  if (node.IsScalar()) return canonical(node.Scalar());
  if (node.size() == 0) return "";
  std::string out = "[";
  if (node.IsMap()) {
    for (const auto& item : node) out += item.first.Scalar() + ":" + canonical(item.second) + ",";
  } else {
    for (const YAML::Node& item : node) out += canonical(item) + ",";
  }
  return out + "]";
}

RawValue raw_of_node(const YAML::Node& node) {
  RawValue raw;
  if (node.IsNull()) return raw;
  if (node.IsScalar()) return {.kind = Kind::scalar, .text = node.Scalar(), .quoted = node.Tag() == "!", .items = {}};
  std::ostringstream shown;
  YAML::Emitter emitter(shown);
  emitter << YAML::Flow << node;
  raw.text = shown.str();
  raw.kind = node.IsMap() ? Kind::map : Kind::list;
  if (node.IsSequence())
    for (const YAML::Node& item : node) {
      if (!item.IsScalar() && !item.IsNull())
        raw.kind = Kind::map;
      else
        raw.items.push_back(item.IsNull() ? "" : item.Scalar());
    }
  return raw;
}

/// Tabs that indent are an error of YAML which its parsers report in a puzzling way.
void refuse_tabs(std::string_view text, const std::string& name) {
  int line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, end - begin);
    const size_t first = row.find_first_not_of(" \t");
    const size_t tab = row.find('\t');
    if (first != row.npos && tab < first)
      throw Error("E006", "{}: a tab indents a line", name).where("{}:{}:{}", name, line, tab + 1).hint("use blanks");
    begin = end + 1;
  }
}

bool names_base(const std::string& path) { return fs::path(path).filename() == "base.yml"; }

/// The packaged file that a path means when it does not exist: X for configs/X, maxtext/configs/X and so on.
std::string packaged_path(std::string_view path) {
  for (std::string_view prefix : {"src/maxtext/configs/", "maxtext/configs/", "MaxText/configs/", "configs/", ""})
    if (path.starts_with(prefix) && !packaged_config(path.substr(prefix.size())).empty())
      return std::string(path.substr(prefix.size()));
  return "";
}

[[noreturn]] void missing(const std::string& path, const std::string& where, std::string_view what) {
  std::vector<std::string> names;
  for (std::string_view name : packaged_configs())
    if (name.starts_with("runs/") || name == "base.yml") names.push_back(fmt::format("configs/{}", name));
  throw Error("E005", "configuration {} {}", path, what)
      .where("{}", where)
      .expected(fmt::format("a file; packaged are {}", fmt::join(names, ", ")), path)
      .hint("nibble config {}", names.empty() ? "keys" : names.front());
}

struct Source {
  std::string name;  // for messages
  std::string text;
  std::string identity;  // for cycles
};

Source open_source(const std::string& path, const std::string& beside, const std::string& where) {
  std::error_code error;
  for (const fs::path& candidate :
       {beside.empty() ? fs::path() : fs::path(beside).parent_path() / path, fs::path(path)}) {
    if (candidate.empty() || !fs::exists(candidate, error)) continue;
    if (fs::is_directory(candidate, error)) missing(path, where, "is a folder");
    std::ifstream file(candidate, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) missing(path, where, "cannot be read");
    return {candidate.string(), text.str(), fs::weakly_canonical(candidate, error).string()};
  }
  const std::string inside = packaged_path(path);
  if (inside.empty()) missing(path, where, "does not exist");
  return {"configs/" + inside, std::string(packaged_config(inside)), "packaged " + inside};
}

void read_into(FileLayers& layers, std::vector<std::string>& chain, const Source& source) {
  if (std::find(chain.begin(), chain.end(), source.identity) != chain.end()) {
    chain.push_back(source.identity);
    throw Error("E006", "base_config goes round in a circle")
        .where("{}", fmt::join(chain, " -> "))
        .hint("remove base_config from {}", source.name);
  }
  chain.push_back(source.identity);
  const auto rows = read_yaml(source.text, source.name);
  for (const Assignment& row : rows)
    if (row.name == "base_config" && row.value.kind == Kind::scalar && !row.value.text.empty())
      read_into(layers, chain, open_source(row.value.text, source.name, row.origin));
  auto& target = names_base(source.name) ? layers.base : layers.run;
  for (const Assignment& row : rows)
    if (row.name != "base_config") target.push_back(row);
  chain.pop_back();
}

const YAML::Node& maxtext_table() {
  static const YAML::Node table = YAML::Load(std::string(packaged_config("maxtext_keys.yml")));
  return table;
}

/// name -> row of the table: yaml-cpp's own look-up is linear.
const std::map<std::string, YAML::Node>& maxtext_rows() {
  static const std::map<std::string, YAML::Node> rows = [] {
    std::map<std::string, YAML::Node> made;
    for (const auto& row : maxtext_table()) made.emplace(row.first.Scalar(), row.second);
    return made;
  }();
  return rows;
}

std::string canonical(const RawValue& value) {
  if (value.kind == Kind::null) return "";
  if (value.kind == Kind::scalar) return canonical(value.text);
  return canonical(YAML::Load(value.text));
}

}  // namespace

std::vector<Assignment> read_yaml(std::string_view text, const std::string& name) {
  refuse_tabs(text, name);
  std::vector<Assignment> rows;
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (root.IsNull()) return rows;
    if (!root.IsMap())
      throw Error("E006", "{} holds no `key: value` lines", name).where("{}:1:1", name).hint("nibble config > run.yml");
    std::map<std::string, int> lines;
    for (const auto& item : root) {
      const std::string key = item.first.IsScalar() ? item.first.Scalar() : "";
      const int line = item.first.Mark().line + 1;
      if (const auto [at, fresh] = lines.emplace(key, line); !fresh)
        throw Error("E003", "{} stands twice in {}", key, name)
            .where("{}:{} and {}:{}", name, at->second, name, line)
            .hint("remove one of the two lines");
      rows.push_back({key, raw_of_node(item.second), fmt::format("{}:{}", name, line)});
    }
  } catch (const YAML::Exception& e) {
    throw Error("E006", "{} is no YAML: {}", name, e.msg)
        .where("{}:{}:{}", name, e.mark.line + 1, e.mark.column + 1)
        .hint("one `key: value` a line");
  }
  return rows;
}

FileLayers read_layers(const std::string& path, const std::string& where) {
  FileLayers layers;
  std::vector<std::string> chain;
  read_into(layers, chain, open_source(path, "", where));
  return layers;
}

MaxTextName maxtext_name(const std::string& name, const RawValue& value) {
  const auto& rows = maxtext_rows();
  const auto at = rows.find(name);
  if (at == rows.end()) return {};
  const std::string kind = at->second["class"].Scalar();
  MaxTextName result;
  result.kind = kind == "meaning"      ? MaxTextName::Class::meaning
                : kind == "no_meaning" ? MaxTextName::Class::no_meaning
                                       : MaxTextName::Class::refused;
  if (result.kind == MaxTextName::Class::meaning) return result;
  result.at_default = canonical(value) == canonical(at->second["default"]);
  if (at->second["reason"]) result.reason = at->second["reason"].Scalar();
  return result;
}

bool is_maxtext_default(const Key& key, const RawValue& value) {
  const std::string own = canonical(value);
  if (key.name == "dataset_type" && own == "tfds") return true;  // the default of base.yml before MaxText 0.2
  return own == canonical(YAML::Load(std::string(key.maxtext.empty() ? key.initial : key.maxtext)));
}

std::string maxtext_default_text(const Key& key) {
  const bool foreign = maxtext_rows().contains(std::string(key.name));
  if (!foreign && key.maxtext.empty()) return "";  // an alias has its default in the column
  return std::string(key.maxtext.empty() ? key.initial : key.maxtext);
}

Error unknown_key(const std::string& name, const std::string& where) {
  std::vector<std::string> names;
  for (int i = 0; i < key_count(); ++i) names.emplace_back(key_at(i).name);
  for (const KeyAlias& alias : key_aliases()) names.emplace_back(alias.name);
  const auto near = nearest(name, names);
  Error error("E001", "unknown key {}", name);
  error.where_text = where;
  error.hint_text = near.empty() ? "nibble config keys" : fmt::format("did you mean {}?", either(near));
  return error;
}

}  // namespace nibble
